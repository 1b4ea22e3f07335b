"""The paper's experiments, recognised among records: the main table's rows, the ablation and the sweeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from resitta.bench.paper import PAPER
from resitta.bench.presets import TASKS
from resitta.bench.record import RunRecord, settings_of
from resitta.method import create
from resitta.report.against import changed, model_of, obstacles
from resitta.report.groups import Group, by_domains, grouped
from resitta.report.identity import FOLDER, digest, experiment, facts
from resitta.report.labels import labels

SWEPT = ("eta", "mature_age", "forget_age", "nu_b", "nu_m", "lr")
ABLATED_ON = "cifar100"
"""The data set of the paper's ablation, Table 4."""


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
    model: str = ""
    """The paper's network, if ours is another one."""

    @property
    def best(self) -> str:
        """The value with our lowest error."""
        known = [(error, value) for error, value in zip(self.ours, self.values, strict=True) if error is not None]
        return min(known)[1]

    @property
    def has_paper(self) -> bool:
        """Whether the paper has measured any of it."""
        return any(error is not None for error in self.theirs)

    @property
    def paper_label(self) -> str:
        """What the paper's line is called: it names the paper's network if ours is another one."""
        return f"paper, {self.model}" if self.model else "paper"


def main_rows(runs: Sequence[RunRecord], dataset: str) -> list[RunRecord]:
    """The runs with the paper's usual settings."""
    return [run for run in runs if run.method != "resitta" or not changed(run, dataset)]


def find_comparisons(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    """The ablation and the sweeps among some runs; runs that differ in more than settings make several of each."""
    return find_ablation(runs, dataset) + find_sweeps(runs, dataset)


def find_sweeps(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    """One comparison for each setting that varies alone in some runs of ResiTTA."""
    usual = settings_of(create("resitta", preset=dataset))
    found = []
    for place, groups in _alike(runs):
        variants = _variants(groups, dataset)
        for setting in SWEPT:
            alone = {v.get(setting, usual[setting]): group for v, group in variants if v.keys() <= {setting}}
            if len(alone) > 1 or (alone and usual[setting] not in alone):
                found.append(_sweep(setting, dataset, place, alone))
    return found


def find_ablation(runs: Sequence[RunRecord], dataset: str) -> list[Comparison]:
    """The variants of Table 4, if some of them were run; the paper's numbers only on the data set it measured."""
    found = []
    for place, groups in _alike(runs):
        variants = _variants(groups, dataset)
        picked = {n: g for n, row in enumerate(PAPER.table4) for v, g in variants if v == dict(row.settings)}
        if len(picked) > 1:
            theirs = {n: row.average for n, row in enumerate(PAPER.table4)}
            names = {n: _left_out(row.settings) for n, row in enumerate(PAPER.table4)}
            title = f"What each part contributes{place}"
            about = {"title": title, "name": "variant", "dataset": dataset, "measured": ABLATED_ON}
            found.append(_comparison(names=names, groups=picked, theirs=theirs, **about))
    return found


def _sweep(setting: str, dataset: str, place: str, groups: Mapping[float, Group]) -> Comparison:
    paper = PAPER.sweep(setting)
    theirs = dict(zip(paper.values, paper.averages[dataset], strict=True))
    names = {value: f"{value:g}" for value in sorted({*groups, *theirs})}
    about = {"title": f"Sweep of {setting}{place}", "name": setting, "dataset": dataset, "measured": dataset}
    return _comparison(names=names, groups=groups, theirs=theirs, **about)


def _comparison(
    *,
    title: str,
    name: str,
    names: Mapping[Any, str],
    groups: Mapping[Any, Group],
    theirs: Mapping[Any, float],
    dataset: str,
    measured: str,
) -> Comparison:
    """Put ours beside the paper's numbers if they are for the data set and protocol of our runs."""
    run = next(iter(groups.values())).runs[0]
    comparable = measured == dataset and not obstacles(run, dataset, settings=False, model=False)
    kept = {key: text for key, text in names.items() if comparable or key in groups}
    ours, network = _averages(groups), model_of(run.identity)
    return Comparison(
        title=title,
        name=name,
        values=tuple(kept.values()),
        ours=tuple(ours.get(key) for key in kept),
        theirs=tuple(theirs.get(key) if comparable else None for key in kept),
        dataset=measured,
        model=TASKS[dataset].model if network not in ("", TASKS[dataset].model) else "",
    )


def _averages(groups: Mapping[Any, Group]) -> dict[Any, float]:
    """The average error of each group over the seeds that all have, or over its own if there is none."""
    seeds = set.intersection(*({run.seed for run in group.runs} for group in groups.values()))
    return {
        key: mean(run.average for run in group.runs if run.seed in seeds or not seeds) for key, group in groups.items()
    }


def _alike(runs: Sequence[RunRecord]) -> list[tuple[str, list[Group]]]:
    """The groups of ResiTTA that differ in their settings alone, each set with what tells it from the others."""
    every = [group for part in by_domains([run for run in runs if run.method == "resitta"]) for group in grouped(part)]
    keys = [experiment(group.runs[0]) for group in every]
    sets: dict[str, list[Group]] = {}
    for group, key in zip(every, keys, strict=True):
        sets.setdefault(_context(group.runs[0], with_folder=keys.count(key) > 1), []).append(group)
    names = labels([groups[0].runs[0] for groups in sets.values()])
    places = [name[name.index(" (") :] if name.endswith(")") else "" for name in names]
    return list(zip(places, sets.values(), strict=True))


def _context(run: RunRecord, *, with_folder: bool) -> str:
    """A key of all that defines a run but its settings; the folder counts where folders contradict each other."""
    skipped = ("settings.",) if with_folder else ("settings.", FOLDER)
    context = {key: value for key, value in facts(run).items() if not key.startswith(skipped)}
    return digest([context, run.domains, run.borders, run.samples], 64)


def _variants(groups: Sequence[Group], dataset: str) -> list[tuple[dict[str, Any], Group]]:
    return [(changed(group.runs[0], dataset), group) for group in groups]


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
