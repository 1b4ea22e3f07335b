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
from resitta.bench.record import RunRecord, environment, load
from resitta.dist.engines import Engine, run_jobs
from resitta.errors import BadData, BadSetting, UnknownName, near
from resitta.registry import create, get_method
from resitta.report.experiments import Comparison, find_ablation, find_sweeps, main_rows
from resitta.report.formats import as_csv, as_latex, as_markdown, as_rich, as_text, comparison_text
from resitta.report.page import write_page
from resitta.report.tables import error_table
from resitta.terminal import bars, console

FORMS = {"text": as_text, "markdown": as_markdown, "csv": as_csv, "latex": as_latex}
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


def print_report(folder: Path, form: str, dataset: str | None = None) -> None:
    """Print the records of a folder in one of the forms, or write its page; with a data set, beside the paper."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise BadData(f"{folder} holds no records (*.json); give the --out folder of a bench")
    runs = sorted((load(path) for path in paths), key=_rank)
    paper = None if dataset is None else PAPER.main(dataset)
    found = [] if dataset is None else _comparisons(runs, dataset)
    if found and dataset is not None:
        runs, paper = main_rows(runs, dataset), None  # sweeps may be on another network than the paper's table
    if form == "html":
        page = write_page(folder / "index.html", title=folder.name, runs=runs, paper=paper, comparisons=found)
        console().print(f"written: {page}", highlight=False)
        return
    text = "\n".join([FORMS[form](error_table(runs, paper=paper)), *map(comparison_text, found)])
    console().print(text, markup=False, highlight=False, soft_wrap=True)


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
        environment=environment(),
        commands=[shlex.join(["resitta", *sys.argv[1:]])] if Path(sys.argv[0]).name == "resitta" else [],
    )
    console().print(as_rich(table))
    console().print(f"Tables, records and the page are in {out}; open {page}", highlight=False, soft_wrap=True)


def _comparisons(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    return find_ablation(runs, dataset) + find_sweeps(runs, dataset)


def _print_gold(runs: Sequence[RunRecord], paper: Mapping[str, PaperRow]) -> None:
    source = next((run for run in runs if run.method == "source"), None)
    if source is None:
        return
    verdict = gold_check(source, paper["source"])
    console().print(str(verdict), style="green" if verdict.passed else "bold red", highlight=False)
