"""A report as text: a table for each set of domains, how its best two rows compare, the paper's experiments."""

from collections.abc import Callable, Sequence

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord
from resitta.report.experiments import Comparison, find_comparisons, main_rows
from resitta.report.formats import as_csv, as_latex, as_markdown, as_text, comparison_csv, comparison_text
from resitta.report.groups import Group, by_domains, grouped, short
from resitta.report.headline import rival
from resitta.report.paired import verdict, verdicts
from resitta.report.palette import called, hero
from resitta.report.table import Table
from resitta.report.tables import table_of

FORMS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
}


def report_text(runs: Sequence[RunRecord], form: str, *, dataset: str | None = None, highlight: str = "") -> str:
    """Print runs in one of the `FORMS`, beside the paper's numbers on a data set if one is given.

    CSV holds numbers only; in LaTeX everything but the tables is a comment.
    """
    parts = parts_of(runs, dataset)
    names = highlights(parts, highlight)
    blocks = [_block(part, form, dataset, name, alone=len(parts) == 1) for part, name in zip(parts, names, strict=True)]
    found = [] if dataset is None else find_comparisons(runs, dataset)
    return "\n\n".join([*blocks, *(_experiment(one, form) for one in found)])


def parts_of(runs: Sequence[RunRecord], dataset: str | None = None) -> list[list[RunRecord]]:
    """The runs of each table: one set of domains and, where a sweep or the ablation is shown apart, the usual rows."""
    parts = by_domains(runs)
    if dataset is None or not find_comparisons(runs, dataset):
        return parts
    return [main_rows(part, dataset) or part for part in parts]


def highlights(parts: Sequence[Sequence[RunRecord]], name: str) -> list[str]:
    """The row to highlight in each part; empty where another part has it."""
    found = [bool(called(grouped(part), name)) for part in parts]
    return [name if here or not any(found) else "" for here in found]


def heading(runs: Sequence[RunRecord]) -> str:
    """What tells the runs of one table from those of another.

    >>> from types import SimpleNamespace
    >>> heading([SimpleNamespace(domains=("fog", "jpeg_compression"))])
    '2 domains: fog, jpeg'
    """
    names = [short(domain) for domain in dict.fromkeys(runs[0].domains)]
    visits = f" in {len(runs[0].domains)} visits" if len(runs[0].domains) > len(names) else ""
    return f"{len(names)} domain{'s' * (len(names) > 1)}{visits}: {', '.join(names)}"


def conclusions(groups: Sequence[Group], highlight: str = "") -> list[str]:
    """How the best two rows of each task compare, and the highlighted row with the best of the others."""
    found = verdicts(groups)
    ours = hero(groups, highlight) if highlight else None
    other = rival(groups, ours) if ours else None
    if ours and other and not {verdict(ours, other), verdict(other, ours)} & set(found):
        found.append(verdict(ours, other))
    return found


def _block(part: Sequence[RunRecord], form: str, dataset: str | None, highlight: str, *, alone: bool) -> str:
    """A table with its heading, if there are several, and its conclusions."""
    groups = grouped(part)
    table = FORMS[form](table_of(groups, paper=None if dataset is None else PAPER.main(dataset)))
    said = conclusions(groups, highlight)
    if form == "csv":
        return table.rstrip("\n")
    title = [] if alone else ["## " * (form == "markdown") + heading(part), ""]
    gap = [""] * (form == "markdown")  # lines that follow each other make one paragraph
    return "\n".join([*_comments(title, form), table, *_comments([line for one in said for line in (*gap, one)], form)])


def _experiment(found: Comparison, form: str) -> str:
    if form == "csv":
        return comparison_csv(found).rstrip("\n")
    text = comparison_text(found)
    return f"```text\n{text}\n```" if form == "markdown" else "\n".join(_comments(text.split("\n"), form))


def _comments(lines: Sequence[str], form: str) -> list[str]:
    return [f"% {line}".rstrip() for line in lines] if form == "latex" else list(lines)
