"""The paper's experiments, recognised among records: the main table's rows, the ablation and the sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord, settings_of
from resitta.registry import create

SWEPT = ("eta", "mature_age", "forget_age", "nu_b", "nu_m", "lr")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Average errors of ResiTTA over the values of something, ours and the paper's (None where one has no value)."""

    title: str
    name: str
    values: tuple[str, ...]
    ours: tuple[float | None, ...]
    theirs: tuple[float | None, ...]
    dataset: str
    """The paper's data set that `theirs` comes from."""

    @property
    def best(self) -> str:
        """The value with our lowest error."""
        known = [(error, value) for error, value in zip(self.ours, self.values, strict=True) if error is not None]
        return min(known)[1]


def main_rows(runs: Sequence[RunRecord], dataset: str) -> list[RunRecord]:
    """The runs with the paper's usual settings."""
    return [run for run in runs if run.method != "resitta" or not changed(run, dataset)]


def changed(run: RunRecord, dataset: str) -> dict[str, Any]:
    """The settings of a run that are not the usual ones on the paper's data set."""
    usual = settings_of(create(run.method, preset=dataset))
    return {name: value for name, value in run.settings.items() if usual.get(name) != value}


def find_sweeps(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    """One comparison for each setting that varies alone in some runs of ResiTTA."""
    usual = settings_of(create("resitta", preset=dataset))
    found = []
    for setting in SWEPT:
        ours = {usual[setting]: averages(runs, dataset, {})}
        for run in runs:
            if run.method == "resitta" and set(changed(run, dataset)) == {setting}:
                value = run.settings[setting]
                ours[value] = averages(runs, dataset, {setting: value})
        if len(ours) > 1:
            found.append(_sweep(setting, dataset, ours))
    return found


def _sweep(setting: str, dataset: str, ours: dict[float, float | None]) -> Comparison:
    paper = PAPER.sweep(setting)
    theirs = dict(zip(paper.values, paper.averages[dataset], strict=True))
    values = sorted(ours | theirs)
    return Comparison(
        title=f"{setting} on {dataset}",
        name=setting,
        values=tuple(f"{value:g}" for value in values),
        ours=tuple(ours.get(value) for value in values),
        theirs=tuple(theirs.get(value) for value in values),
        dataset=dataset,
    )


def find_ablation(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    """Table 4 beside ours, if some of its variants were run."""
    ours = [averages(runs, dataset, dict(row.settings)) for row in PAPER.table4]
    if sum(error is not None for error in ours) < 2:
        return []
    return [
        Comparison(
            title="What each part contributes",
            name="variant",
            values=tuple(_left_out(row.settings) for row in PAPER.table4),
            ours=tuple(ours),
            theirs=tuple(row.average for row in PAPER.table4),
            dataset="cifar100",
        )
    ]


def averages(runs: Sequence[RunRecord], dataset: str, settings: dict[str, Any]) -> float | None:
    """The average error, over seeds, of ResiTTA with exactly these changes; None if it was not run."""
    found = [run.average for run in runs if run.method == "resitta" and changed(run, dataset) == settings]
    return mean(found) if found else None


def _left_out(settings: Any) -> str:
    """A short name: ResiBN replaced by another normalisation, or one of EntroBank's three rules left out."""
    names = {
        "norm=adbn": "AdBN",
        "norm=rbn": "RBN",
        "drop_outdated=False": "-age",
        "drop_overconfident=False": "-sure",
        "compare_uncertainty=False": "-unsure",
    }
    changes = [f"{key}={value}" for key, value in settings.items()]
    return ", ".join(names.get(change, change) for change in changes) or "full"
