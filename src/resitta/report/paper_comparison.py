"""Comparison with the paper: which runs match its tables, and its ablation and sweeps among records."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import mean
from typing import Any

from resitta.adapter import Options
from resitta.bench.experiments import TASKS
from resitta.bench.paper import DATASETS, PAPER, PaperRow
from resitta.bench.record import RunRecord, settings_of
from resitta.bench.runner import identity_digest
from resitta.errors import BadData, UnknownName
from resitta.method import create
from resitta.report.groups import Group, by_domains, grouped
from resitta.report.identity import FOLDER, experiment, facts, labels

IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""The images of each corruption in the paper's streams."""
_OF_OURS = ("corruption_seed",)  # the paper reads its corrupted images from disk


def printed_row(group: Group, paper: Mapping[str, PaperRow]) -> PaperRow | None:
    """The paper's row for a group, if the group can be compared with it."""
    row = paper.get(group.method)
    return row if row and not obstacles(group.runs[0], dataset_of(paper)) else None


def notes(groups: Sequence[Group], paper: Mapping[str, PaperRow]) -> tuple[str, ...]:
    """Why groups of the paper's methods have no numbers of the paper, and what else differs."""
    if not paper:
        return ()
    dataset, reasons = dataset_of(paper), dict[str, list[str]]()
    for group in groups:
        if group.method in paper and (found := obstacles(group.runs[0], dataset)):
            reasons.setdefault(", ".join(found), []).append(group.label)
    said = [f"No paper numbers for {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    compared = [group.runs[0] for group in groups if printed_row(group, paper)]
    counts = sorted({run.samples // len(run.domains) for run in compared} - {IMAGES[dataset]})
    here = " or ".join(f"{count:,}" for count in counts)
    return (*said, *([f"Here {here} images of each corruption, in the paper {IMAGES[dataset]:,}."] if counts else []))


def obstacles(run: RunRecord, dataset: str, *, settings: bool = True, model: bool = True) -> list[str]:
    """Why a run cannot be compared with the paper's numbers on a data set; empty if it can.

    `settings` and `model`: whether those have to be the paper's; in a sweep they need not.
    """
    if not run.identity.get("protocol"):
        return ["their protocol is not recorded"]
    found = _protocol(run.identity["protocol"], dataset) + _data(run.identity, dataset) + _options(run.identity)
    found += ["untrained weights"] if run.identity.get("untrained") else []
    if model:
        found += _model(run.identity, dataset)
    if settings:
        found += [f"{key}={value}" for key, value in changed(run, dataset).items()]
    return found


def changed(run: RunRecord, dataset: str) -> dict[str, Any]:
    """The settings of a run that are not the usual ones on the paper's data set; all of them for unknown methods."""
    try:
        usual = settings_of(create(run.method, preset=dataset))
    except UnknownName:
        usual = {}
    return {name: value for name, value in run.settings.items() if usual.get(name) != value}


def dataset_of(paper: Mapping[str, PaperRow]) -> str:
    """The data set of a main table."""
    found = next((name for name in DATASETS if PAPER.main(name) == paper), None)
    if found is None:
        raise BadData(f"these {len(paper)} rows are no main table of the paper; give PAPER.table1, table2 or table3")
    return found


def model_of(identity: Mapping[str, Any]) -> str:
    """The name of a run's network, also from that of a testbed (DATASET-MODEL); empty if it is not recorded."""
    return identity.get("model") or str(identity.get("bed", "")).partition("-")[2]


def _protocol(protocol: Mapping[str, Any], dataset: str) -> list[str]:
    usual = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(TASKS[dataset].protocol).items()}
    if list(protocol.get("corruptions", ())) != usual.pop("corruptions"):
        return ["other domains than the fifteen corruptions in the paper's order"]
    pairs = {key: (protocol.get(key), value) for key, value in usual.items() if key not in _OF_OURS}
    return [f"{key} {_shown(ours)} (paper: {_shown(paper)})" for key, (ours, paper) in pairs.items() if ours != paper]


def _data(identity: Mapping[str, Any], dataset: str) -> list[str]:
    """Whether the data is named after another data set of the paper; other names say nothing."""
    name = str(identity.get("data") or identity.get("bed") or "")
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    named = max((known for known in DATASETS if known in plain), key=len, default=dataset)
    return [] if named == dataset else [f"data {name} (paper: {dataset})"]


def _model(identity: Mapping[str, Any], dataset: str) -> list[str]:
    model, usual = model_of(identity), TASKS[dataset].model
    return [f"model {model} (paper: {usual})"] if model and model != usual else []


def _options(identity: Mapping[str, Any]) -> list[str]:
    """Options of the adapter that are not the usual ones, such as its precision."""
    usual = {field.name: field.default for field in fields(Options)}
    return [f"{key} {value}" for key, value in identity.items() if value != usual.get(key, value)]


def _shown(value: Any) -> Any:
    return "all" if value is None else value


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
    runs = {key: [run for run in group.runs if run.seed in seeds or not seeds] for key, group in groups.items()}
    return {key: mean(run.average for run in own) for key, own in runs.items()}


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
    return identity_digest([context, run.domains, run.borders, run.samples], 64)


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
