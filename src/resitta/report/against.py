"""What of a report can be compared with the paper: its protocol, data set, network and settings, and nothing else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from resitta.adapter import Options
from resitta.bench.paper import DATASETS, PAPER, PaperRow
from resitta.bench.presets import TASKS
from resitta.bench.record import RunRecord, settings_of
from resitta.errors import BadData, UnknownName
from resitta.method import create
from resitta.report.groups import Group

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
    """What keeps a run from being compared with the paper's numbers on a data set, in words; nothing if it can be.

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
    """The data set of a main table.

    >>> dataset_of(PAPER.table2)
    'cifar100'
    """
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
    other = {
        key: protocol.get(key) for key, value in usual.items() if key not in _OF_OURS and protocol.get(key) != value
    }
    return [f"{key} {_shown(value)} (paper: {_shown(usual[key])})" for key, value in other.items()]


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
