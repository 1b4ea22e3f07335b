"""The paper's experiments as data: what `resitta reproduce` runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from resitta import names
from resitta.bench.paper import PAPER
from resitta.bench.protocol import Protocol
from resitta.bench.runner import Job
from resitta.errors import UnknownName, near
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
