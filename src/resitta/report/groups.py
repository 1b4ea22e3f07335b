"""Runs that belong together: one method with one group of settings, over several seeds."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resitta.bench.record import RunRecord
from resitta.errors import BadData
from resitta.streams.corruptions import CORRUPTIONS

TITLES = {
    "source": "Source",
    "bn": "BN",
    "pl": "PL",
    "tent": "TENT",
    "lame": "LAME",
    "cotta": "CoTTA",
    "note": "NOTE",
    "rotta": "RoTTA",
    "resitta": "ResiTTA",
}
"""The methods as the paper writes them."""


@dataclass(frozen=True)
class Group:
    """The runs of one method with the same settings; they differ in their seeds."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return self.runs[0].method

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
            raise BadData(
                f"the runs of {self.label} have traces of {lengths} points; give runs of equally long streams"
            )
        return tuple(np.mean(traces, axis=0).tolist())


def grouped(runs: Sequence[RunRecord]) -> tuple[Group, ...]:
    """Bring the seeds of each method together, in the order in which the methods first appear.

    A method that was run with several settings makes several groups; their labels name what differs.
    """
    if not runs:
        raise BadData("there are no runs to report; give at least one RunRecord")
    if len({run.domains for run in runs}) > 1:
        found = " and ".join(sorted({str(len(run.domains)) for run in runs}))
        raise BadData(f"the runs went through different domains ({found} of them); report them one by one")
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(json.dumps([run.method, run.settings], sort_keys=True, default=str), []).append(run)
    first = [members[0] for members in together.values()]
    labels = [_label(run, [other for other in first if other.method == run.method]) for run in first]
    return tuple(Group(label, tuple(members)) for label, members in zip(labels, together.values(), strict=True))


def _label(run: RunRecord, same_method: list[RunRecord]) -> str:
    def unusual(key: str, value: Any) -> bool:
        """Whether not even the majority has it."""
        same = [other for other in same_method if other.settings.get(key) == value]
        return 2 * len(same) <= len(same_method)

    changed = [f"{key}={value}" for key, value in run.settings.items() if len(same_method) > 1 and unusual(key, value)]
    return " ".join([TITLES.get(run.method, run.method), *changed])


def short(domain: str) -> str:
    """A domain's name as the paper's tables print it.

    >>> short("jpeg_compression"), short("gaussian_blur")
    ('jpeg', 'gaussian blur')
    """
    return domain.partition("_")[0] if domain in CORRUPTIONS else domain.replace("_", " ")
