"""Reports from folders of records: text in several formats, tables and pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from resitta.bench.paper import PAPER, PaperRow
from resitta.bench.record import RunRecord, load, read_json
from resitta.errors import BadData
from resitta.names import METHODS
from resitta.report.captions import rival
from resitta.report.formats import as_csv, as_latex, as_markdown, as_text, comparison_csv, comparison_text
from resitta.report.groups import Group, by_domains, grouped, short
from resitta.report.identity import from_folder
from resitta.report.page import write_page
from resitta.report.palette import called, hero
from resitta.report.paper_comparison import Comparison, find_comparisons, main_rows
from resitta.report.significance import verdict, verdicts
from resitta.report.table import Table, error_table, table_of


def publish(
    out: Path,
    runs: Sequence[RunRecord],
    *,
    title: str,
    paper: Mapping[str, PaperRow] | None = None,
    comparisons: Sequence[Comparison] = (),
    commands: Sequence[str] = (),
) -> tuple[Table, Path]:
    """Write the tables and the page of runs into the folder of their records; return the table and the page's path."""
    table = error_table(runs, paper=paper)
    for suffix, form in (("md", as_markdown), ("csv", as_csv), ("tex", as_latex)):
        (out / f"table.{suffix}").write_text(form(table), encoding="utf-8")
    about: dict[str, Any] = {"paper": paper, "comparisons": comparisons, "commands": commands}
    environment = environment_of(paths_of(runs, out))
    return table, write_page(out / "index.html", title=title, runs=runs, environment=environment, **about)


def write_pages(
    folders: Sequence[Path], *, dataset: str | None = None, title: str = "", highlight: str = ""
) -> list[Path]:
    """Write a page for each set of domains among the records of folders, into the first folder; return the paths."""
    runs, pages = read_folders(folders), []
    parts = parts_of(runs, dataset)
    title = title or " and ".join(folder.resolve().name for folder in folders)
    name = "index" if len(folders) == 1 else "compared"
    for number, (part, row) in enumerate(zip(parts, highlights(parts, highlight), strict=True), start=1):
        page = write_page(
            folders[0] / (f"{name}-{number}.html" if number > 1 else f"{name}.html"),
            title=f"{title}, {heading(part)}" if len(parts) > 1 else title,
            runs=part,
            paper=None if dataset is None else PAPER.main(dataset),
            comparisons=() if dataset is None or number > 1 else find_comparisons(runs, dataset),
            environment=environment_of(path for folder in folders for path in record_paths(folder)),
            highlight=row,
        )
        pages.append(page)
    return pages


def read_folders(folders: Sequence[Path]) -> list[RunRecord]:
    """Read all records of folders, in the order of the paper's tables; with several, each run knows its folder."""
    runs: list[RunRecord] = []
    for folder, name in zip(folders, _names(folders), strict=True):
        paths = record_paths(folder)
        if not paths:
            raise BadData(f"{folder} holds no records (*.json); give the --out folder of a bench")
        found = [load(path) for path in paths]
        runs += [from_folder(run, name) for run in found] if len(folders) > 1 else found
    return sorted(runs, key=_rank)


def _rank(run: RunRecord) -> tuple[int, str, int]:
    """The paper's methods in the paper's order, then others by name."""
    return (METHODS.index(run.method) if run.method in METHODS else len(METHODS), run.method, run.seed)


def record_paths(folder: Path) -> list[Path]:
    """The files of a folder's records."""
    return sorted(folder.glob("*.json"))


def paths_of(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    """The files of a folder that hold these runs; others are ignored."""
    found = []
    for path in record_paths(folder):
        with suppress(BadData):
            found += [path] if load(path) in runs else []
    return found


def environment_of(paths: Iterable[Path]) -> dict[str, str]:
    """The versions and hardware that records were made with; where they differ, all of them."""
    found: dict[str, list[str]] = {}
    for path in paths:
        made_with: dict[str, Any] = read_json(path).get("environment", {})
        for key, value in made_with.items():
            found.setdefault(key, []).append(str(value))
    return {key: " or ".join(dict.fromkeys(values)) for key, values in found.items()}


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths where two have the same."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


FORMS: dict[str, Callable[[Table], str]] = {"text": as_text, "markdown": as_markdown, "csv": as_csv, "latex": as_latex}


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
