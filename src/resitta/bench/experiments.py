"""The paper's experiments: what `resitta reproduce` runs, and the check of its Source row."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resitta import names
from resitta.bench.api import ALL, run
from resitta.bench.paper import PAPER, MainTable, PaperRow
from resitta.bench.protocol import Protocol
from resitta.bench.record import Records, RunRecord
from resitta.bench.runner import Job
from resitta.errors import BadSetting, UnknownName, near
from resitta.method import Method, create

METHODS, SWEEPS, TABLES, EXPERIMENTS = names.METHODS, names.SWEEPS, names.TABLES, names.EXPERIMENTS


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set of the paper: its source network, the preset of the methods, and the order of its stream."""

    dataset: str
    model: str
    protocol: Protocol = field(default_factory=Protocol)


TASKS = {
    "cifar10": Task(dataset="cifar10", model="wrn28x10"),
    "cifar100": Task(dataset="cifar100", model="resnext29"),
    "imagenet": Task(dataset="imagenet", model="resnet50", protocol=Protocol(order="sorted")),
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper: the task and the variants of methods to run on it."""

    name: str
    task: Task
    variants: tuple[tuple[str, dict[str, Any]], ...]

    def methods(self, names: Sequence[str] = ()) -> list[Method]:
        """The methods with their settings; `names` keeps only some of a main table's rows."""
        wanted = [(name, s) for name, s in self.variants if not names or name in names]
        return [create(name, preset=self.task.dataset, **settings) for name, settings in wanted]

    def jobs(self, seeds: Sequence[int], methods: Sequence[str] = ()) -> list[Job]:
        """All runs of the experiment; `methods` keeps only some of a main table's rows."""
        return [Job(method=method, seed=seed) for method in self.methods(methods) for seed in seeds]


def experiment(name: str, dataset: str | None = None) -> Experiment:
    """Find an experiment by its name; sweeps and the ablation can be run on another data set than the paper's.

    >>> experiment("table1").task.model
    'wrn28x10'
    >>> [settings["eta"] for _, settings in experiment("eta", "imagenet").variants]
    [0.001, 0.005, 0.01, 0.05, 0.1]
    """
    if name not in EXPERIMENTS:
        raise UnknownName(f"the paper has no experiment {name!r}. {near(name, EXPERIMENTS)}")
    dataset = TABLES.get(name) or dataset or "cifar100"
    if dataset not in TASKS:
        raise UnknownName(f"the paper has no data set {dataset!r}. {near(dataset, TASKS)}")
    return Experiment(name=name, task=TASKS[dataset], variants=tuple(_variants(name)))


def _variants(name: str) -> list[tuple[str, dict[str, Any]]]:
    if name in TABLES:
        return [(method, {}) for method in METHODS]
    if name == "ablation":
        return [("resitta", dict(row.settings)) for row in PAPER.table4]
    setting = SWEEPS[name]
    kind = type(getattr(create("resitta"), setting))  # ages are whole numbers
    return [("resitta", {setting: kind(value)}) for value in PAPER.sweep(setting).values]


@dataclass(frozen=True)
class Reproduction:
    """The records of one of the paper's experiments."""

    experiment: Experiment
    records: Records

    @property
    def paper(self) -> MainTable | None:
        """The paper's rows, if the experiment is a main table."""
        return PAPER.main(self.experiment.task.dataset) if self.experiment.name in TABLES else None

    @property
    def source_check(self) -> "SourceCheck | None":
        """How Source compares with its row of a main table; None if it was not run or there is no such row."""
        source = next((run for run in self.records if run.method == "source"), None)
        return check_source(source, self.paper["source"]) if source and self.paper else None


def reproduce(
    name: str,
    data: str | Path,
    checkpoint: str | Path,
    *,
    dataset: str | None = None,
    model: str | None = None,
    methods: Sequence[str] = METHODS,
    per_domain: int | None = None,
    **options: Any,
) -> Reproduction:
    """Run a table, the ablation or a sweep of the paper.

    Args:
        name: one of `EXPERIMENTS`: "table1", "ablation", "eta", ...
        data: the corrupted set as published, or clean images to corrupt.
        checkpoint: the weights of the source network.
        dataset: of the ablation and the sweeps; by default "cifar100".
        model: another source network than the paper's.
        methods: only these rows of a table; "all" stands for every row.
        per_domain: use only so many images of each corruption.
        options: seeds, out, device, executor and so on, see `resitta.bench.run`.
    """
    wanted = experiment(name, dataset)
    chosen = wanted.methods([] if ALL in methods else methods)
    if not chosen:
        raise BadSetting(f"none of {', '.join(methods)} is part of {name}")
    protocol = vars(replace(wanted.task.protocol, per_domain=per_domain))
    records = run(model or wanted.task.model, data, chosen, checkpoint=checkpoint, **protocol, **options)
    return Reproduction(wanted, records)


TOLERANCE = 0.1


@dataclass(frozen=True)
class SourceCheck:
    """Source needs no adaptation: on the public weights and data its row must equal the paper's, cell by cell.

    Holds the cell that differs most from the paper's.
    """

    corruption: str
    ours: float
    paper: float

    @property
    def passed(self) -> bool:
        """Whether every cell agrees up to the rounding of print."""
        return abs(self.ours - self.paper) <= TOLERANCE + 1e-9

    def __str__(self) -> str:
        if self.passed:
            return f"Source check passed: the Source row equals the paper's within {TOLERANCE}."
        return (
            f"SOURCE CHECK FAILED: Source has {self.ours:.1f} % error on {self.corruption}, the paper {self.paper:.1f}."
            " Weights, data or preprocessing are not the public ones, so this run does not reproduce the table: check "
            "the checkpoint, the normalisation and the data before comparing methods with the paper."
        )


def check_source(source: RunRecord, paper: PaperRow) -> SourceCheck:
    """Compare a run of Source with its row in the paper."""
    cells = [(name, error, paper[name]) for name, error in zip(source.domains, source.errors, strict=True)]
    return SourceCheck(*max(cells, key=lambda cell: abs(cell[1] - cell[2])))
