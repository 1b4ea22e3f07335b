"""Write what `resitta recommend` knows, from the records of all methods on all testbeds, or check that it is current.

    python benchmarks/recommendations.py            # rewrite src/resitta/methods/recommendations.json
    python benchmarks/recommendations.py --check    # exit status 1 if it differs from the records

Records are expected as `benchmarks/beds.py` writes them:

    python benchmarks/beds.py --bed cifar10-wrn16x1 --order iid --out benchmarks/records/matrix/cifar10-wrn16x1/iid

Costs come from records of benchmarks/speed.py: runs of the matrix share a device, and their times are no cost of a
method alone.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from beds import TESTBEDS
from table_tools import RECORDS, ROOT, record

from resitta.bench.experiments import TASKS
from resitta.bench.record import RunRecord, load, settings_of
from resitta.bench.runner import identity_digest
from resitta.errors import UnknownName
from resitta.method import create
from resitta.methods.recommend import Bed, Cell, Measurements, normalisation
from resitta.models import create as create_model
from resitta.training.network import Network

MATRIX = RECORDS / "matrix"
SPEEDS = "speed-steps-wrn28x10-h200", "speed-methods-wrn28x10-h200"
"""The first holds the methods that were measured again later."""
DATA = ROOT / "src" / "resitta" / "methods" / "recommendations.json"
TITLES = {
    "cifar10-wrn16x1": "CIFAR-10, WRN-16-1",
    "cifar10-wrn16x4": "CIFAR-10, WRN-16-4",
    "cifar10-wrn28x10": "CIFAR-10, WRN-28-10",
    "cifar10-resnet26gn": "CIFAR-10, ResNet-26 with GroupNorm",
    "cifar10-vit": "CIFAR-10, ViT",
    "cifar100-resnext29": "CIFAR-100, ResNeXt-29",
    "imagenet-resnet50": "ImageNet, ResNet-50",
}
"""In the order of columns; a testbed without a title is called by its name."""


@dataclass(frozen=True)
class Run:
    """A record of a run on a testbed."""

    record: RunRecord

    @property
    def protocol(self) -> Mapping[str, Any]:
        """The protocol of the run."""
        found: Mapping[str, Any] = self.record.identity["protocol"]
        return found

    @property
    def place(self) -> tuple[Any, ...]:
        """What runs must share to be compared: testbed, order, course, size of batches, images."""
        keys = ("order", "course", "severity", "batch_size", "per_domain", "visits")
        return (self.record.identity["bed"], *(self.protocol[key] for key in keys), self.record.samples)

    @property
    def version(self) -> str:
        """A digest of all that defines the run except its seed, and except the digest of its source statistics."""
        settings = {key: value for key, value in self.record.identity["settings"].items() if key != "source"}
        return identity_digest({**self.record.identity, "settings": settings})


def read(folder: Path = MATRIX) -> list[Run]:
    """All runs in full precision below a folder of `<testbed>/<order>/`."""
    runs = []
    for path in sorted(folder.glob("*/*/*.json")):
        run = Run(load(path))
        bed, order = run.record.identity.get("bed"), run.record.identity.get("protocol", {}).get("order")
        if (bed, order) != (path.parts[-3], path.parts[-2]):
            sys.exit(f"{path} is a record of {bed}, {order}; move it to {folder}/{bed}/{order}/")
        if run.record.identity.get("precision", "exact") == "exact":
            runs.append(run)
    return runs


def measured(folder: Path = MATRIX) -> Measurements:
    """The testbeds and cells of all records below a folder; both are empty if there are none."""
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in read(folder):
        groups[run.place, run.record.method, json.dumps(changed(run.record), sort_keys=True)].append(run)
    cells = [cell_of(newest(group)) for group in groups.values()]
    names = sorted({cell.bed for cell in cells}, key=rank)
    cells.sort(key=lambda cell: (rank(cell.bed), cell.order, cell.setup, cell.error, cell.label))
    return Measurements(tuple(testbed(name) for name in names), tuple(cells))


def rank(bed: str) -> tuple[int, str]:
    """The place of a testbed among columns."""
    return list(TITLES).index(bed) if bed in TITLES else len(TITLES), bed


@cache
def testbed(name: str) -> Bed:
    """What a model is compared with: the kind of normalisation and the number of classes of the source network."""
    if name not in TESTBEDS:
        sys.exit(f"no testbed is called {name!r}; benchmarks/beds.py has {', '.join(TESTBEDS)}")
    model = create_model(TESTBEDS[name].model, None, **TESTBEDS[name].options)
    classes = Network(model).classes
    return Bed(name=name, title=TITLES.get(name, name), normalisation=normalisation(model), classes=classes)


def changed(record: RunRecord) -> dict[str, Any]:
    """The settings of a run that are not those of its testbed's preset, without the source data."""
    dataset = TASKS[TESTBEDS[record.identity["bed"]].task].dataset
    try:
        usual = settings_of(create(record.method, preset=dataset))
    except UnknownName:
        usual = {}
    return {key: value for key, value in record.settings.items() if key != "source" and usual.get(key) != value}


def newest(group: list[Run]) -> list[Run]:
    """The runs of the last version measured: only runs that differ in nothing but their seed are averaged."""
    digests: dict[str, list[Run]] = defaultdict(list)
    for run in group:
        digests[run.version].append(run)
    return max(digests.values(), key=lambda runs: max(run.record.made for run in runs))


def cell_of(runs: list[Run]) -> Cell:
    """The cell of the runs of one method, which differ in their seeds."""
    first, errors = runs[0], [run.record.average for run in runs]
    return Cell(
        bed=first.record.identity["bed"],
        order=first.protocol["order"],
        course=first.protocol["course"],
        severity=first.protocol["severity"],
        batch_size=first.protocol["batch_size"],
        images=first.record.samples,
        domains=len(set(first.record.domains)),
        method=first.record.method,
        changed=changed(first.record),
        seeds=sorted(run.record.seed for run in runs),
        error=round(statistics.mean(errors), 3),
        spread=round(statistics.stdev(errors), 3) if len(errors) > 1 else None,
        cost=cost(first.record.method, changed(first.record)),
    )


def cost(method: str, changed: Mapping[str, Any]) -> float | None:
    """The time per image as a multiple of plain inference, alone on the device. A label prior is measured apart.

    >>> cost("source", {}), cost("source", {"label_prior": "temporal"}), cost("a method of mine", {})
    (0.97, 1.01, None)
    """
    name = f"{method}, label prior" if "label_prior" in changed else {"resitta": "resitta, exact"}.get(method, method)
    rows = [row for row in (record(speed)["rows"].get(name) for speed in SPEEDS) if row is not None]
    return round(rows[0]["ratio"], 2) if rows else None


def as_text(found: Measurements) -> str:
    """The data file."""
    return json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the file differs")
    parser.add_argument("--records", type=Path, default=MATRIX, help="the folder of records")
    parser.add_argument("--data", type=Path, default=DATA, help="the file to write")
    args = parser.parse_args()
    text = as_text(measured(args.records))
    if args.data.exists() and args.data.read_text("utf-8") == text:
        return 0
    print(f"{args.data} {'differs from the records' if args.check else 'was written'}")
    if args.check:
        print("run: python benchmarks/recommendations.py")
        return 1
    args.data.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
