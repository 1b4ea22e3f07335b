"""Tables of error rates: our records, and the paper's numbers beside them."""

import json
import statistics
from collections.abc import Iterable
from typing import Any

from table_tools import (
    CORRUPTIONS,
    FEW,
    TABLES,
    TITLES,
    VALUES,
    Cell,
    Run,
    lowest_bold,
    markdown,
    one,
    record,
    runs,
    spread,
    table,
)

from resitta.bench.paper import PAPER, Sweep

DEMOS = {"Photographs of the demo, WRN-16-1": "demo", "Handwritten digits, small network": "demo-digits"}
STREAMS = {
    "Photographs of the demo, WRN-16-1": "demo",
    "CIFAR-10, WRN-16-1": "cifar10-wrn16x1",
    "CIFAR-10, WRN-28-10": "cifar10-wrn28x10",
    "CIFAR-100, ResNeXt-29": "cifar100-resnext29",
    "ImageNet, ResNet-50": "imagenet-resnet50",
}


COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{TITLES[method]: (method, {}) for method in FEW},
    "Tide, no label prior": ("tide", {"label_prior": "none"}),
    "Tide": ("tide", {"label_prior": None}),
}
"""The methods of short tables with their settings."""


@table("headline")
def headline() -> str:
    """A few methods on every stream, seed 1."""
    titles, theirs = measured(STREAMS.values()), PAPER.main("cifar10")
    rows = [row_of(title, folder, titles) for title, folder in STREAMS.items()]
    paper = [theirs[COLUMNS[title][0]].average if COLUMNS[title][0] in theirs else "–" for title in titles]
    rows.append(["The paper: CIFAR-10-C, WRN-28-10, 150,000 images", *lowest_bold(paper)])
    return markdown(["average error (%)", *titles], rows)


@table("demo")
def demos() -> str:
    """What the two demos print."""
    titles = measured(DEMOS.values())
    return markdown(["average error (%)", *titles], [row_of(title, folder, titles) for title, folder in DEMOS.items()])


def measured(folders: Iterable[str]) -> list[str]:
    """The columns of which there are records."""
    return [title for title in COLUMNS if any(of_column(folder, title) for folder in folders)]


def of_column(folder: str, title: str) -> Run | None:
    """The record of a column, seed 1, if there is one."""
    method, settings = COLUMNS[title]
    return one(folder, method, **settings) if runs(folder, method, 1, **settings) else None


def row_of(title: str, folder: str, titles: Iterable[str]) -> list[str]:
    """A row of averages; a dash for methods that were not run."""
    found = {name: run for name in titles if (run := of_column(folder, name))}
    averages = [found[name].average if name in found else "–" for name in titles]
    return [f"{title}, {found['Source'].samples:,} images", *lowest_bold(averages)]


@table("all-methods")
def all_methods() -> str:
    """All methods on the large streams, with the spread over seeds, and the paper's averages."""
    rows = []
    for dataset, folder in MAIN.items():
        rows.append([f"`{folder}`", *lowest_bold([spread(runs(folder, method)) for method in TITLES])])
        if dataset == "imagenet":
            name = f"{folder}-13-classes"
            rows.append([f"`{name}`", *lowest_bold([spread(runs(name, method)) for method in TITLES])])
        rows.append([f"paper, {NAMES[dataset]}", *lowest_bold([PAPER.main(dataset)[m].average for m in TITLES])])
    return markdown(["records", *TITLES.values()], rows)


NAMES = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C", "imagenet": "ImageNet-C"}
MAIN = {"cifar10": "cifar10-wrn28x10", "cifar100": "cifar100-resnext29", "imagenet": "imagenet-resnet50"}


def per_corruption(dataset: str) -> str:
    """Every cell of one of the paper's main tables, ours (seed 1) and the paper's."""
    rows: list[list[Cell]] = []
    for method, title in TITLES.items():
        ours, theirs = one(MAIN[dataset], method), PAPER.main(dataset)[method]
        rows.append([title, f"**{ours.average:.1f}**", *ours.errors])
        rows.append(["*paper*", f"*{theirs.average:.1f}*", *(f"*{error:.1f}*" for error in theirs.errors)])
    return markdown(["error (%)", "Avg", *CORRUPTIONS], rows)


for _dataset in MAIN:
    TABLES[f"corruptions-{_dataset}"] = lambda dataset=_dataset: per_corruption(dataset)  # type: ignore[misc]


ABLATIONS: dict[str, dict[str, Any]] = {
    "full method": {},
    "RBN instead of ResiBN": {"norm": "rbn"},
    "without the age rule": {"drop_outdated": False},
    "without the confidence rule": {"drop_overconfident": False},
    "without the uncertainty rule": {"compare_uncertainty": False},
    "AdBN instead of ResiBN": {"norm": "adbn"},
}
USUAL: dict[str, Any] = {
    "norm": "resibn",
    "drop_outdated": True,
    "drop_overconfident": True,
    "compare_uncertainty": True,
    "eta": 0.01,
    "mature_age": 200,
    "forget_age": 1000,
    "nu_b": 0.05,
    "nu_m": 0.001,
    "lr": 0.001,
}


@table("ablation")
def ablation() -> str:
    """The paper's Table 4, ours on another network and data set."""
    theirs = {json.dumps(row.settings, sort_keys=True): row.average for row in PAPER.table4}
    rows: list[list[Cell]] = []
    for title, changed in ABLATIONS.items():
        ours = one("cifar10-wrn16x4", "resitta", **{**USUAL, **changed}).average
        rows.append([title, ours, theirs[json.dumps(changed, sort_keys=True)]])
    return markdown(["average error (%)", "CIFAR-10, WRN-16-4", "paper: CIFAR-100-C, ResNeXt-29"], rows)


SYMBOLS = {
    "eta": "η",
    "nu_b": "ν_b",
    "nu_m": "ν_m",
    "lr": "learning rate",
    "mature_age": "T_mature",
    "forget_age": "T_forget",
}


@table("sweeps")
def sweeps() -> str:
    """The paper's six sweeps: ours on WRN-16-4, the paper's on WRN-28-10, both CIFAR-10."""
    blocks = []
    for setting, symbol in SYMBOLS.items():
        sweep: Sweep = PAPER.sweep(setting)
        ours = [one("cifar10-wrn16x4", "resitta", **{**USUAL, setting: value}).average for value in sweep.values]
        rows = [["ours", *lowest_bold(ours)], ["paper", *lowest_bold(sweep.averages["cifar10"])]]
        blocks.append(markdown([f"`{setting}` ({symbol})", *(f"{value:g}" for value in sweep.values)], rows))
    return "\n\n".join(blocks)


@table("reset-on-shift")
def reset_on_shift() -> str:
    """The change-point detector, off and on, three seeds."""
    rows = []
    for title, folder in list(STREAMS.items())[1:]:
        small = folder == "cifar10-wrn16x1"
        plain = [r for r in runs(f"{folder}-renew" if small else folder, "resitta") if not r.settings.get("renew")]
        reset = runs(f"{folder}-renew", "resitta", renew=2)
        command = f"--bed {folder}" + (" --per-domain 2000" if small else " --device cuda")
        rows.append([f"{title}, {plain[0].samples:,} images", *lowest_bold([spread(plain), spread(reset)]), command])
    head = ["average error (%), 3 seeds", "off", "`reset_on_shift=2`", "options of the command"]
    return markdown(head, [[*row[:3], f"`{row[3]}`"] for row in rows])


@table("reset-bounds")
def reset_bounds() -> str:
    """Other bounds of the detector, seed 1."""
    bounds = (1.5, 2, 3)
    found = [one("cifar10-wrn16x1-renew", "resitta", renew=bound).average for bound in bounds]
    return markdown(["`reset_on_shift`", *map(str, bounds)], [["average error (%), WRN-16-1, seed 1", *found]])


@table("shifts")
def shifts() -> str:
    """How many of the 14 changes of domain the detector notices."""
    rows = []
    for key, found in record("shifts").items():
        bed, order, seed, bound = key.split(", ")
        if bound == "bound 2":
            cells = [str(found[name]) for name in ("changes", "at once", "late", "false")]
            rows.append([f"{bed}, {order}, {seed}", *cells])
    return markdown(["stream, bound 2", "changes", "found at once", "found later", "false alarms"], rows)


@table("testbeds")
def testbeds() -> str:
    """Our networks against those that anyone can train."""
    found = record("testbeds")
    names = {"this testbed": "made by `testbeds.py`", "the testbed of the other records": "the testbed of our records"}
    methods = ("source", "bn", "rotta", "resitta")
    rows = [[title, *(found["errors"][key][method] for method in methods)] for key, title in names.items()]
    return markdown(["error (%), WRN-16-1", *(TITLES[method] for method in methods)], rows)


# The paper's order of methods


@table("paper-reasons")
def paper_reasons() -> str:
    """NOTE and CoTTA taken apart."""
    note, cotta = "cifar10-wrn28x10", "cifar100-resnext29"
    still = one(f"{note}-note", "note", momentum=0)
    rows: list[list[Cell]] = []
    for title, run, dataset in (
        ("CIFAR-10, first 8: NOTE", one(note, "note"), "cifar10"),
        ("NOTE without learning (`lr=1e-9`)", one(f"{note}-note", "note", lr=1e-9, momentum=0.01), ""),
        ("NOTE without learning, with source statistics (`lr=1e-9 momentum=0`)", still, ""),
        ("CIFAR-100, first 5: BN", one(cotta, "bn"), "cifar100"),
        ("CoTTA", one(cotta, "cotta"), "cifar100"),
        ("CoTTA without learning (`lr=1e-9`)", one(f"{cotta}-cotta", "cotta", lr=1e-9), ""),
        ("CoTTA without averaging over views (`threshold=0`)", one(f"{cotta}-cotta", "cotta", threshold=0), ""),
    ):
        count = 8 if run.method == "note" else 5
        theirs = statistics.mean(PAPER.main(dataset)[run.method].errors[:count]) if dataset else None
        rows.append([title, statistics.mean(run.errors[:count]), theirs])
    return markdown(["corruptions of the stream", "error (%)", "in the paper"], rows)


IMAGENET = "imagenet-resnet50"


@table("classes-in-batch")
def classes_in_batch() -> str:
    """ImageNet with 32 and 13 classes in a batch, and with larger steps."""
    rates = {"pl": 5e-3, "tent": 5e-3, "note": 5e-4, "rotta": 5e-3, "resitta": 5e-3}
    few, large = f"{IMAGENET}-13-classes", f"{IMAGENET}-13-classes-variants"
    rows: list[list[Cell]] = [
        ["32 classes in a batch", *lowest_bold([one(IMAGENET, method).average for method in TITLES])],
        ["13 classes in a batch", *lowest_bold([one(few, method).average for method in TITLES])],
        [
            "13 classes, steps 5 times as large",
            *lowest_bold([one(large, m, lr=rates[m]).average if m in rates else None for m in TITLES]),
        ],
        ["the paper", *lowest_bold([PAPER.main("imagenet")[method].average for method in TITLES])],
    ]
    return markdown(["average error (%)", *TITLES.values()], rows)


@table("imagenet-order")
def imagenet_order() -> str:
    """What batch size, order and a few settings do on ImageNet, one run each."""
    few, other = f"{IMAGENET}-13-classes", f"{IMAGENET}-13-classes-variants"
    pl_all = one(other, "pl", parameters="all")
    rows: list[tuple[str, float]] = [
        ("BN, shuffled, batches of 64 (`--order iid`)", one(f"{IMAGENET}-shuffled", "bn").average),
        ("BN, shuffled, batches of 26", one(f"{IMAGENET}-shuffled-26", "bn").average),
        ("BN, sorted, batches of 26", one(few, "bn").average),
        ("TENT, sorted, batches of 26, `lr=5e-4`", one(other, "tent", lr=5e-4).average),
        ("LAME, sorted, batches of 26", one(few, "lame").average),
        ("LAME, sorted, batches of 26, `neighbours=1`", one(other, "lame").average),
        ("PL, `parameters=all`, first corruption only", pl_all.errors[0]),
    ]
    return markdown(["ImageNet, ResNet-50", "error (%)"], rows)


@table("shuffled")
def shuffled() -> str:
    """An i.i.d. stream: what is lost with a method made for correlated ones."""
    methods = ("bn", "pl", "tent", "cotta", "rotta", "resitta")
    sorted_, mixed = ([one(f, m).average for m in methods] for f in (IMAGENET, f"{IMAGENET}-shuffled"))
    rows = [["sorted by class", *lowest_bold(sorted_)], ["shuffled (i.i.d.)", *lowest_bold(mixed)]]
    return markdown(["ImageNet, ResNet-50, average error (%)", *(TITLES[m] for m in methods)], rows)


@table("imagenet-lr")
def imagenet_lr() -> str:
    """The sweep of the learning rate on ImageNet."""
    sweep = PAPER.sweep("lr")
    wide = [*sweep.values, 0.025, 0.05, 0.1]
    ours = [one(f"{IMAGENET}-lr", "resitta", lr=lr).average for lr in wide]
    theirs: list[Cell] = [*sweep.averages["imagenet"], None, None, None]
    rows = [["ResiTTA", *lowest_bold(ours)], ["in the paper", *lowest_bold(theirs)]]
    return markdown(["learning rate", *(f"{lr:g}" for lr in wide)], rows)


@table("pl-course")
def pl_course() -> str:
    """PL on ImageNet, corruption by corruption."""
    rows: list[list[Cell]] = [
        ["13 classes in a batch", *one(f"{IMAGENET}-13-classes", "pl").errors[:8]],
        ["and steps 5 times as large", *one(f"{IMAGENET}-13-classes-variants", "pl", lr=5e-3).errors[:8]],
        ["in the paper", *PAPER.main("imagenet")["pl"].errors[:8]],
    ]
    return markdown(["PL, error (%)", *CORRUPTIONS[:8]], rows)


def gain(method: str) -> float:
    """What steps five times as large gain with 13 classes in a batch."""
    small = one(f"{IMAGENET}-13-classes", method).average
    return small - one(f"{IMAGENET}-13-classes-variants", method, lr=5e-3).average


def middle() -> float:
    """How far CoTTA, BN and PL lie apart with 13 classes in a batch."""
    found = [one(f"{IMAGENET}-13-classes", method).average for method in ("cotta", "bn", "pl")]
    return max(found) - min(found)


def first(method: str, count: int, folder: str, **settings: float) -> float:
    """The mean error of the first corruptions."""
    return statistics.mean(one(folder, method, **settings).errors[:count])


PUBLIC_BN = 68.6
"""BN on ImageNet-C, public weights, shuffled batches of 64: see docs/benchmark/paper.md for the source."""

VALUES |= {
    "note-first": lambda: first("note", 1, "cifar10-wrn28x10"),
    "note-first-still": lambda: first("note", 1, "cifar10-wrn28x10-note", momentum=0.01),
    "note-first-paper": lambda: PAPER.main("cifar10")["note"].errors[0],
    "bn-right": lambda: 100 - one("cifar100-resnext29", "bn").average,
    "copies-cost": lambda: (
        first("cotta", 5, "cifar100-resnext29-cotta", lr=1e-9) - first("bn", 5, "cifar100-resnext29")
    ),
    "middle": middle,
    "bn-left": lambda: PAPER.main("imagenet")["bn"].average - one(f"{IMAGENET}-13-classes", "bn").average,
    "bn-left-shuffled": lambda: PUBLIC_BN - one(f"{IMAGENET}-shuffled", "bn").average,
    "gain-rotta": lambda: gain("rotta"),
    "gain-resitta": lambda: gain("resitta"),
    "pl-first-paper": lambda: PAPER.main("imagenet")["pl"].errors[0],
}
