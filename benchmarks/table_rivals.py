"""Tables of methods beyond the paper's: agreement with their authors' code, and what the label prior does."""

import statistics
from dataclasses import dataclass
from functools import cache

from recommendations import Run as MatrixRun
from recommendations import changed, read
from table_tools import RECORDS, VALUES, Cell, Run, markdown, runs, table

SMALL = "matrix/cifar10-wrn16x1"
DRAWS = "cifar10-wrn16x1-draws"
LARGE = "matrix-2000/cifar100-resnext29"
FAMOUS = "matrix/imagenet-resnet50"
BEDS = {
    SMALL: "CIFAR-10, WRN-16-1, 1,000 per corruption",
    LARGE: "CIFAR-100, ResNeXt-29, 2,000 per corruption",
    FAMOUS: "ImageNet, ResNet-50, 2,000 per corruption",
}
ORDERS = {
    "ptta": "PTTA",
    "slots": "PTTA, shuffled slots",
    "sorted": "sorted by label",
    "iid": "shuffled",
    "mixed": "mixed",
}


@dataclass(frozen=True)
class Theirs:
    """An error that the authors' code had."""

    method: str
    title: str
    folder: str
    order: str
    error: float


AUTHORS = (
    Theirs("rotta", "RoTTA", SMALL, "ptta", 44.0),
    Theirs("tribe", "TRIBE", SMALL, "ptta", 38.6),
    Theirs("petta", "PeTTA", SMALL, "ptta", 43.8),
    Theirs("roid", "ROID", SMALL, "ptta", 66.5),
    Theirs("bn", "BN", SMALL, "iid", 31.1),
    Theirs("tribe", "TRIBE", SMALL, "iid", 38.4),
    Theirs("roid", "ROID", SMALL, "iid", 28.3),
    Theirs("source", "Source", LARGE, "ptta", 48.5),
    Theirs("tribe", "TRIBE", LARGE, "ptta", 39.4),
    Theirs("petta", "PeTTA", LARGE, "ptta", 43.4),
    Theirs("bn", "BN", LARGE, "iid", 38.9),
    Theirs("roid", "ROID", LARGE, "iid", 35.7),
    Theirs("tribe", "TRIBE", FAMOUS, "sorted", 64.7),
)
"""Measured with the code that the authors published, on other draws of the same streams."""


@table("rivals")
def agreement() -> str:
    """The authors' code and ours."""
    rows: list[list[Cell]] = []
    for theirs in AUTHORS:
        ours = plain(theirs.folder, theirs.order, theirs.method)
        difference = round(ours, 1) - theirs.error
        where = f"{BEDS[theirs.folder]}, {ORDERS[theirs.order]}"
        rows.append([theirs.title, where, f"{theirs.error:.1f}", f"{ours:.1f}", f"{difference:+.1f}".replace("-", "−")])
    lines = markdown(["method", "testbed and stream", "authors' code", "ours", "difference"], rows).splitlines()
    return "\n".join([lines[0], "| --- | --- | --: | --: | --: |", *lines[2:]])


@table("rivals-draws")
def draws() -> str:
    """Errors of several orders of the same images, drawn by the seed."""
    rows: list[list[Cell]] = []
    for theirs in AUTHORS:
        ours = sorted(runs(DRAWS, theirs.method), key=lambda run: run.seed)
        if (theirs.folder, theirs.order) == (SMALL, "ptta") and ours:
            each = [run.average for run in ours]
            spread = f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}"
            rows.append([theirs.title, ", ".join(f"{error:.1f}" for error in each), spread, theirs.error])
    return markdown(["method", "ours, one draw after the other", "mean ± standard deviation", "authors' code"], rows)


def plain(folder: str, order: str, method: str) -> float:
    """The newest error of a method's usual settings, seed 1. The source's does not depend on the order."""
    place, bed = folder.split("/")
    found = [
        run.record
        for run in measured_in(place)
        if run.record.identity["bed"] == bed
        and (run.protocol["order"] == order or method == "source")
        and (run.record.method, run.record.seed, run.protocol["course"]) == (method, 1, "once")
        and not changed(run.record)
    ]
    return max(found, key=lambda record: (record.samples, record.made)).average


@cache
def measured_in(folder: str) -> list[MatrixRun]:
    """The runs of all testbeds in a folder, read once."""
    return read(RECORDS / folder)


def with_prior(run: Run) -> bool:
    """Whether a run had a label prior."""
    return bool(run.settings.get("label_prior", "none") != "none")


@table("label-prior")
def label_prior() -> str:
    """Errors without and with the label prior."""
    rows = [
        [title, *(effect(f"{folder}/{order}", method) for order in ORDERS)]
        for title, folder, method in (
            ("CIFAR-10, ViT, Source", "matrix/cifar10-vit", "source"),
            ("CIFAR-10, ResNet-26 with GroupNorm, Source", "matrix/cifar10-resnet26gn", "source"),
            ("the same, ROID: its own correction → the label prior", "matrix/cifar10-resnet26gn", "roid"),
            ("ImageNet, ResNet-50, Source", FAMOUS, "source"),
        )
    ]
    rows.append(["CIFAR-10, WRN-16-1, ResiTTA(reset_on_shift=2)", effect("label-prior", "resitta")])
    rows.append(["the same, `feedback=True`", effect("label-prior", "resitta", feedback=True)])
    full = [[*row, *["–"] * (len(ORDERS) + 1 - len(row))] for row in rows]
    return markdown(["error (%), without → with", *ORDERS.values()], full)


def effect(folder: str, method: str, *, feedback: bool = False) -> str:
    """The error without the prior, and that with it."""
    found = runs(folder, method, 1)
    without = [run.average for run in found if not with_prior(run)]
    prior = [run.average for run in found if with_prior(run) and run.settings.get("feedback", False) == feedback]
    return f"{without[0]:.1f} → {prior[0]:.1f}" if without and prior else "–"


@table("label-prior-first")
def first_version() -> str:
    """A first version of the label prior, with a fixed temperature."""
    rows: list[list[Cell]] = []
    for method, title in {"source": "Source", "tribe": "TRIBE"}.items():
        cells = []
        for order in ("ptta", "iid"):
            prior = next(run for run in runs(f"{LARGE}/{order}", method) if with_prior(run))
            cells.append(f"{plain(LARGE, order, method):.1f} → {prior.average:.1f}")
        rows.append([title, *cells])
    feedback = [
        next(run for run in runs(f"{LARGE}/{order}", "resitta") if run.settings.get("feedback")).average
        for order in ("ptta", "iid")
    ]
    rows.append(["ResiTTA(reset_on_shift=2), with `feedback=True`", *(f"{error:.1f}" for error in feedback)])
    return markdown([f"{BEDS[LARGE]}, error (%)", "PTTA", "shuffled"], rows)


def vit(*, prior: bool) -> float:
    """The error of the unadapted ViT on the temporally correlated stream."""
    return next(run.average for run in runs("matrix/cifar10-vit/ptta", "source") if with_prior(run) == prior)


VALUES["vit-prior"] = lambda: f"{vit(prior=False):.1f} to {vit(prior=True):.1f} %"
