"""What the measuring commands do: run jobs with progress bars, print tables, write pages."""

import ast
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from resitta.bench.bench import Job
from resitta.bench.gold import gold_check
from resitta.bench.paper import PAPER, PaperRow
from resitta.bench.presets import METHODS, TABLES, experiment
from resitta.bench.protocol import Protocol
from resitta.bench.recipe import Recipe
from resitta.bench.record import RunRecord
from resitta.dist.engines import Engine, run_jobs
from resitta.errors import BadSetting, UnknownName, near
from resitta.registry import create, get_method
from resitta.report.experiments import Comparison, find_comparisons
from resitta.report.formats import as_csv, as_latex, as_markdown, as_rich
from resitta.report.groups import grouped
from resitta.report.page import write_page
from resitta.report.printing import conclusions, heading, highlights, parts_of, report_text
from resitta.report.reading import environment_of, paths_of, read_folders, record_paths
from resitta.report.tables import error_table
from resitta.terminal import bars, console

Settings = Mapping[str, dict[str, Any]]


def run_bench(
    model: str,
    data: Path,
    protocol: Protocol,
    *,
    checkpoint: Path | None,
    methods: Sequence[str],
    settings: Sequence[str],
    preset: str | None,
    seeds: Sequence[int],
    size: int | None,
    out: Path,
    device: str,
    engine: Engine,
) -> None:
    """Compare methods on one model and one data set."""
    changed = parse_settings(settings, methods)
    made = [create(name, preset=preset, **changed[name]) for name in methods]
    jobs = [Job(method=method, seed=seed) for method in made for seed in seeds]
    recipe = Recipe(protocol=protocol, model=model, data=data, checkpoint=checkpoint, size=size, out=out, device=device)
    runs = _run(recipe, jobs, engine)
    _publish(out, runs, title=f"{model} on {data.name}")


def run_reproduction(
    name: str,
    data: Path,
    checkpoint: Path,
    *,
    dataset: str | None,
    model: str | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    per_domain: int | None,
    out: Path,
    device: str,
    engine: Engine,
) -> None:
    """Run an experiment of the paper and compare."""
    wanted = experiment(name, dataset)
    protocol = replace(wanted.task.protocol, per_domain=per_domain)
    jobs = wanted.jobs(seeds, methods)
    if not jobs:
        raise BadSetting(f"none of {', '.join(methods)} is part of {name}")
    network = model or wanted.task.model
    recipe = Recipe(protocol=protocol, model=network, data=data, checkpoint=checkpoint, out=out, device=device)
    runs = _run(recipe, jobs, engine)
    paper = PAPER.main(wanted.task.dataset) if name in TABLES else None
    found = _comparisons(runs, wanted.task.dataset)
    _publish(out, runs, title=f"The paper's {name} on {data.name}", paper=paper, comparisons=found)
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
    known = {name: [field.name for field in fields(get_method(name))] for name in methods}
    sorted_out: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for pair in pairs:
        place, equals, text = pair.partition("=")
        method, _, key = place.rpartition(".")
        takers = [name for name in methods if key in known[name] and method in ("", name)]
        if not equals:
            raise BadSetting(f"--set takes key=value or method.key=value, found {pair!r}")
        if not takers:
            every = [f"{name}.{k}" for name, keys in known.items() for k in keys]
            raise UnknownName(f"no method of this bench has the setting {place!r}. {near(place, every)}")
        for name in takers:
            sorted_out[name][key] = _value(text)
    return sorted_out


def _rank(run: RunRecord) -> tuple[int, str, int]:
    """The paper's methods in the paper's order, then others by name."""
    return (METHODS.index(run.method) if run.method in METHODS else len(METHODS), run.method, run.seed)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _run(recipe: Recipe, jobs: Sequence[Job], engine: Engine) -> list[RunRecord]:
    with bars() as bar:
        return run_jobs(recipe, jobs, bar, engine)


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
