"""What the measuring commands do: run jobs with progress bars, print tables, write pages."""

import ast
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from resitta.bench import api
from resitta.bench.choice import ALL, by_method
from resitta.bench.jobs import DoubtfulRuns
from resitta.bench.paper import PAPER, PaperRow
from resitta.bench.presets import METHODS, TABLES, experiment
from resitta.bench.record import RunRecord
from resitta.bench.records import Records
from resitta.bench.source_check import gold_check
from resitta.errors import BadSetting
from resitta.method import Method
from resitta.report.experiments import Comparison, find_comparisons
from resitta.report.formats import as_csv, as_latex, as_markdown, as_rich
from resitta.report.groups import grouped
from resitta.report.page import write_page
from resitta.report.printing import conclusions, heading, highlights, parts_of, report_text
from resitta.report.reading import environment_of, paths_of, read_folders, record_paths
from resitta.report.tables import error_table
from resitta.terminal import bars, console

BY_METHOD = "key=value or method.key=value"
"""What a setting for several methods looks like."""


def run_bench(
    model: str,
    data: Path,
    *,
    methods: Sequence[str],
    settings: Sequence[str],
    model_options: Sequence[str],
    out: Path,
    **options: Any,
) -> None:
    """Compare methods on one model and one data set."""
    given = {
        "settings": parse_pairs(settings, "--set", BY_METHOD),
        "model_options": parse_pairs(model_options, "--model-set"),
    }
    records = _measure(model, data, methods, out=out, **given, **options)
    _publish(out, list(records), title=f"{model} on {data.name}")
    _print_warning(records.warning)


def run_reproduction(
    name: str,
    data: Path,
    *,
    dataset: str | None,
    model: str | None,
    model_options: Sequence[str],
    methods: Sequence[str],
    per_domain: int | None,
    out: Path,
    **options: Any,
) -> None:
    """Run an experiment of the paper and compare."""
    wanted = experiment(name, dataset)
    chosen = wanted.methods([] if ALL in methods else methods)
    if not chosen:
        raise BadSetting(f"none of {', '.join(methods)} is part of {name}")
    protocol = vars(replace(wanted.task.protocol, per_domain=per_domain))
    given = {"model_options": parse_pairs(model_options, "--model-set"), "out": out}
    records = _measure(model or wanted.task.model, data, chosen, **given, **protocol, **options)
    runs = list(records)
    paper = PAPER.main(wanted.task.dataset) if name in TABLES else None
    found = _comparisons(runs, wanted.task.dataset)
    _publish(out, runs, title=f"The paper's {name} on {data.name}", paper=paper, comparisons=found)
    _print_warning(records.warning)
    if paper is not None:
        _print_gold(runs, paper)


def print_report(
    folders: Sequence[Path], form: str, dataset: str | None = None, *, title: str = "", highlight: str = ""
) -> None:
    """Print the records of folders in one of the forms, or write their page; with a data set, beside the paper."""
    runs = sorted(read_folders(folders), key=_rank)
    if form != "html":
        text = report_text(runs, form, dataset=dataset, highlight=highlight)
        console().print(text, markup=False, highlight=False, soft_wrap=True)
        return
    parts = parts_of(runs, dataset)
    names = highlights(parts, highlight)
    for number, part in enumerate(parts):
        name = "index" if len(folders) == 1 else "compared"
        page = write_page(
            folders[0] / (f"{name}-{number + 1}.html" if number else f"{name}.html"),
            title=(title or " and ".join(folder.resolve().name for folder in folders))
            + (f", {heading(part)}" if len(parts) > 1 else ""),
            runs=part,
            paper=None if dataset is None else PAPER.main(dataset),
            comparisons=() if dataset is None or number else _comparisons(runs, dataset),
            environment=environment_of(path for folder in folders for path in record_paths(folder)),
            highlight=names[number],
        )
        console().print(f"written: {page}", highlight=False, soft_wrap=True)


def parse_settings(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sort `key=value` and `method.key=value` by method; a plain key goes to every method that has it.

    >>> parse_settings(["lr=0.01", "resitta.eta=0.05"], ["tent", "resitta"])
    {'tent': {'lr': 0.01}, 'resitta': {'lr': 0.01, 'eta': 0.05}}
    """
    return by_method(parse_pairs(pairs, "--set", BY_METHOD), methods)


def parse_pairs(pairs: Sequence[str], flag: str, form: str = "key=value") -> dict[str, Any]:
    """Read `key=value`: numbers, true, false, None, anything else as text.

    >>> parse_pairs(["pretrained=true", "num_classes=10", "weights=DEFAULT"], "--model-set")
    {'pretrained': True, 'num_classes': 10, 'weights': 'DEFAULT'}
    """
    found = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadSetting(f"{flag} takes {form}, found {pair!r}")
        found[key] = _value(text)
    return found


def _rank(run: RunRecord) -> tuple[int, str, int]:
    """The paper's methods in the paper's order, then others by name."""
    return (METHODS.index(run.method) if run.method in METHODS else len(METHODS), run.method, run.seed)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError):
        return text


def _measure(model: str, data: Path, methods: Sequence[str | Method], **options: Any) -> Records:
    """Run a bench with progress bars, and say what was kept from earlier runs."""
    with bars() as bar, _warnings_in_bold():
        records = api.run(model, data, methods, progress=bar, **options)
    lines = records.kept_lines()
    for line in [*lines, *(["--rerun runs them again"] if lines else [])]:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
    return records


@contextmanager
def _warnings_in_bold() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always", DoubtfulRuns)
        show = warnings.showwarning

        def print_in_bold(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, DoubtfulRuns):
                _print_warning(str(message))
            else:
                show(message, category, *place, **more)

        warnings.showwarning = print_in_bold
        yield


def _print_warning(warning: str) -> None:
    if warning:
        console().print(f"WARNING: {warning}", style="bold red", markup=False, highlight=False, soft_wrap=True)


def _publish(
    out: Path,
    runs: list[RunRecord],
    *,
    title: str,
    paper: Mapping[str, PaperRow] | None = None,
    comparisons: Sequence[Comparison] = (),
) -> None:
    table = error_table(runs, paper=paper)
    for suffix, form in (("md", as_markdown), ("csv", as_csv), ("tex", as_latex)):
        (out / f"table.{suffix}").write_text(form(table), encoding="utf-8")
    page = write_page(
        out / "index.html",
        title=title,
        runs=runs,
        paper=paper,
        comparisons=comparisons,
        environment=environment_of(paths_of(runs, out)),
        commands=[shlex.join(["resitta", *sys.argv[1:]])] if Path(sys.argv[0]).name == "resitta" else [],
    )
    console().print(as_rich(table))
    for sentence in (*table.notes, *conclusions(grouped(runs))):
        console().print(sentence, highlight=False, markup=False, soft_wrap=True)
    console().print(f"Tables, records and the page are in {out}; open {page}", highlight=False, soft_wrap=True)


def _comparisons(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    return find_comparisons(runs, dataset)


def _print_gold(runs: Sequence[RunRecord], paper: Mapping[str, PaperRow]) -> None:
    source = next((run for run in runs if run.method == "source"), None)
    if source is None:
        return
    verdict = gold_check(source, paper["source"])
    console().print(str(verdict), style="green" if verdict.passed else "bold red", highlight=False)
