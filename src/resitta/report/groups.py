"""Groups of runs: one experiment (a method, its settings and a task) over several seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import BadData
from resitta.report.identity import FOLDER, experiment, labels, task, title_of


@dataclass(frozen=True)
class Group:
    """The runs of one experiment; nothing but their seeds differs."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return self.runs[0].method

    @property
    def task(self) -> str:
        """What the method was given: groups of one task have the same streams and the same source network."""
        return task(self.runs[0])

    @property
    def average(self) -> float:
        """The mean over the seeds of the average error."""
        return self.mean(lambda run: run.average)

    def mean(self, measure: Callable[[RunRecord], float]) -> float:
        """The mean over the seeds of something measured."""
        return float(np.mean([measure(run) for run in self.runs]))

    def mean_trace(self, trace: Callable[[RunRecord], Sequence[float]]) -> tuple[float, ...]:
        """The mean over the seeds, point by point, of something measured over time."""
        traces = [trace(run) for run in self.runs]
        if len({len(values) for values in traces}) > 1:
            lengths = ", ".join(str(len(values)) for values in traces)
            raise BadData(f"the runs of {self.label} have traces of {lengths} points; give runs of equal length")
        return tuple(np.mean(traces, axis=0).tolist())


def grouped(runs: Sequence[RunRecord]) -> tuple[Group, ...]:
    """Group runs that differ only in their seed, in order of first appearance; labels name what differs between groups.

    Duplicate records count once. Two different results for one seed of one experiment are two groups if they come from
    different folders, and are refused otherwise.
    """
    if not runs:
        raise BadData("there are no runs to report; give at least one RunRecord")
    if len({run.domains for run in runs}) > 1:
        found = " and ".join(sorted({str(len(run.domains)) for run in runs}))
        remedy = "make a table of each part of resitta.report.groups.by_domains(runs)"
        raise BadData(f"the runs went through different domains ({found} of them); {remedy}")
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(experiment(run), []).append(run)
    groups = [group for members in together.values() for group in _consistent(members)]
    names = labels([_representative(members) for members in groups])
    return tuple(Group(label, tuple(members)) for label, members in zip(names, groups, strict=True))


def by_domains(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Split runs by the domains they went through, since a table has one set of columns."""
    parts: dict[tuple[str, ...], list[RunRecord]] = {}
    for run in runs:
        parts.setdefault(run.domains, []).append(run)
    return list(parts.values())


def _consistent(members: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Drop the copies of a run; split by folder where two results contradict each other."""
    kept: dict[int, RunRecord] = {}
    for run in members:
        first = kept.setdefault(run.seed, run)
        if first.errors != run.errors:
            return _by_folder(members, first, run)
    return [list(kept.values())]


def _by_folder(members: Sequence[RunRecord], one: RunRecord, two: RunRecord) -> list[list[RunRecord]]:
    parts: dict[Any, list[RunRecord]] = {}
    for run in members:
        parts.setdefault(run.identity.get(FOLDER), []).append(run)
    if len(parts) == 1:
        found = f"{one.average:.2f} % and {two.average:.2f} %"
        raise BadData(
            f"two runs of {title_of(one)} with seed {one.seed} differ in nothing that defines them but in their errors "
            f"({found}); remove one, or give each run another seed"
        )
    return [group for part in parts.values() for group in _consistent(part)]


def _representative(members: Sequence[RunRecord]) -> RunRecord:
    """The first run, without its folder if the runs come from several."""
    first = members[0]
    if len({run.identity.get(FOLDER) for run in members}) == 1:
        return first
    return replace(first, identity={key: value for key, value in first.identity.items() if key != FOLDER})


def short(domain: str) -> str:
    """A domain's name as the paper's tables print it.

    >>> short("jpeg_compression"), short("gaussian_blur")
    ('jpeg', 'gaussian blur')
    """
    return domain.partition("_")[0] if domain in CORRUPTIONS else domain.replace("_", " ")
