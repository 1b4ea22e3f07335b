"""The numbers of the paper's ten tables: errors in per cent, severity 5, as printed.

>>> PAPER.table1["resitta"].average, PAPER.table1["source"]["fog"]
(22.4, 26.0)
>>> PAPER.main("imagenet")["rotta"].average
71.6
>>> PAPER.sweep("eta").best("imagenet")
0.05
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import UnknownName, near

DATASETS = ("cifar10", "cifar100", "imagenet")


@dataclass(frozen=True)
class PaperRow:
    """One method's row of a main table: the error on each of `CORRUPTIONS` in order, and the printed Avg.

    Avg was rounded from unrounded errors, so it may differ from the mean of the printed ones by a tenth.
    """

    method: str
    errors: tuple[float, ...]
    average: float

    def __getitem__(self, corruption: str) -> float:
        if corruption not in CORRUPTIONS:
            raise UnknownName(f"the paper has no corruption {corruption!r}. {near(corruption, CORRUPTIONS)}")
        return self.errors[CORRUPTIONS.index(corruption)]


MainTable = Mapping[str, PaperRow]


@dataclass(frozen=True)
class Ablation:
    """A row of Table 4: what differs from the default ResiTTA, and the average error on CIFAR100-C."""

    settings: Mapping[str, Any]
    average: float


@dataclass(frozen=True)
class Sweep:
    """One of Tables 5 to 10: average errors of ResiTTA while one setting varies, per data set."""

    setting: str
    values: tuple[float, ...]
    averages: Mapping[str, tuple[float, ...]]

    def best(self, dataset: str) -> float:
        """The value with the lowest error."""
        errors = self.averages[dataset]
        return self.values[errors.index(min(errors))]


@dataclass(frozen=True)
class Paper:
    """All tables; `table1` to `table3` are CIFAR10-C, CIFAR100-C and ImageNet-C."""

    table1: MainTable
    table2: MainTable
    table3: MainTable
    table4: tuple[Ablation, ...]
    sweeps: Mapping[str, Sweep]

    def main(self, dataset: str) -> MainTable:
        """Table 1, 2 or 3, by data set."""
        if dataset not in DATASETS:
            raise UnknownName(f"the paper has no data set {dataset!r}. {near(dataset, DATASETS)}")
        return (self.table1, self.table2, self.table3)[DATASETS.index(dataset)]

    def sweep(self, setting: str) -> Sweep:
        """The table of one setting of ResiTTA: eta, mature_age, forget_age, nu_b, nu_m or lr."""
        if setting not in self.sweeps:
            raise UnknownName(f"the paper does not vary {setting!r}. {near(setting, self.sweeps)}")
        return self.sweeps[setting]


def _main(text: str) -> MainTable:
    """Read lines of a method's name, the fifteen errors, and Avg."""
    rows = (line.split() for line in text.strip().splitlines())
    return {name: PaperRow(name, tuple(map(float, errors)), float(avg)) for name, *errors, avg in rows}


def _sweep(setting: str, text: str) -> Sweep:
    """Read a line of values and one line of averages per data set."""
    values, *rows = (tuple(map(float, line.split())) for line in text.strip().splitlines())
    return Sweep(setting, values, dict(zip(DATASETS, rows, strict=True)))


_TABLE1 = """
source  34.8 25.1 26.0 65.7 46.9 46.7 42.0  9.3 41.3 26.6 54.3 72.3 58.5 30.3 72.9 43.5
bn      73.2 73.4 72.7 77.2 73.7 72.5 72.9 71.0 74.1 77.7 80.0 76.9 75.5 78.3 79.0 75.2
pl      73.9 75.0 75.6 81.0 79.9 80.6 82.0 83.2 85.3 87.3 88.3 87.5 87.5 87.5 88.2 82.9
tent    74.3 77.4 80.1 86.2 86.7 87.3 87.9 87.4 88.2 89.0 89.2 89.0 88.3 89.7 89.2 86.0
lame    29.5 19.0 20.3 65.3 42.4 43.4 36.8  5.4 37.2 18.6 51.2 73.2 57.0 22.6 71.3 39.5
cotta   77.1 80.6 83.1 84.4 83.9 84.2 83.1 82.6 84.4 84.2 84.5 84.6 82.7 83.8 84.9 83.2
note    18.0 22.1 20.6 35.6 26.9 13.6 26.5 17.3 27.2 37.0 48.3 38.8 42.6 41.9 49.7 31.1
rotta   18.1 21.3 18.8 33.6 23.6 16.5 15.1 11.2 21.9 30.7 39.6 26.8 33.7 27.8 39.5 25.2
resitta 18.4 19.5 15.5 30.5 23.8 12.2 14.0  9.3 18.5 24.6 35.8 24.9 27.7 22.6 39.1 22.4
"""

_TABLE2 = """
source  30.8 39.5 50.3 68.0 29.3 55.1 28.8 29.5 45.8 37.2 54.1 73.0 74.7 41.2 39.4 46.4
bn      48.5 54.0 58.9 56.2 46.4 48.0 47.0 45.4 52.9 53.4 57.1 58.2 51.7 57.1 58.8 52.9
pl      50.6 62.1 73.9 87.8 90.8 96.0 94.8 96.4 97.4 97.2 97.4 97.4 97.3 97.4 97.4 88.9
tent    53.3 77.6 93.0 96.5 96.7 97.5 97.1 97.5 97.3 97.2 97.1 97.7 97.6 98.0 98.3 92.8
lame    22.4 30.4 43.9 66.3 21.3 51.7 20.6 21.8 39.6 28.0 48.7 72.8 74.6 33.1 32.3 40.5
cotta   49.2 52.7 56.8 53.0 48.7 51.7 49.4 48.7 52.5 52.2 54.3 54.9 49.6 53.4 56.2 52.2
note    45.7 53.0 58.2 65.6 54.2 52.0 59.8 63.5 74.8 91.8 98.1 98.3 96.8 97.0 98.2 73.8
rotta   31.8 36.7 40.9 42.1 30.0 33.6 27.9 25.4 32.3 34.0 38.8 38.7 31.3 38.0 42.9 35.0
resitta 29.2 33.9 39.5 39.4 28.4 29.2 26.5 24.8 30.8 33.9 37.5 38.6 31.6 37.9 41.5 33.5
"""

_TABLE3 = """
source  85.5 83.5 76.4 96.5 81.8 94.6 78.1 41.2 77.4 83.0 89.7 97.1 79.1 67.5 97.5 81.9
bn      86.0 80.8 71.1 90.4 92.4 90.4 79.0 58.4 81.9 75.5 92.4 90.7 71.1 76.2 90.6 81.8
pl      87.2 88.3 86.4 97.2 98.9 99.6 99.1 98.5 99.6 99.6 99.7 99.8 99.7 99.7 99.7 96.9
tent    84.9 78.9 69.4 87.9 89.4 87.6 79.1 64.4 83.0 77.2 91.2 88.9 78.0 80.4 89.6 82.0
lame    85.3 83.4 76.1 96.7 80.6 94.1 76.1 34.6 76.2 83.2 89.9 97.4 77.5 63.8 97.9 80.8
cotta   86.9 80.4 71.7 87.3 90.8 89.4 78.1 60.5 78.8 73.1 89.4 85.0 67.8 72.6 84.5 79.8
note    83.9 79.6 78.2 93.5 97.3 94.4 96.7 92.1 97.1 98.1 99.3 99.4 98.6 98.9 99.6 93.8
rotta   78.3 76.2 59.9 88.2 87.7 84.7 66.1 40.4 69.6 58.4 78.1 86.2 56.7 58.8 85.6 71.6
resitta 74.4 69.2 54.0 82.9 80.7 75.8 63.9 37.5 65.6 57.2 76.8 77.5 55.7 53.6 75.5 66.7
"""

_TABLE4 = (
    Ablation({}, 33.5),
    Ablation({"norm": "adbn"}, 51.6),
    Ablation({"norm": "rbn"}, 35.4),
    Ablation({"drop_outdated": False}, 33.9),
    Ablation({"drop_overconfident": False}, 35.4),
    Ablation({"compare_uncertainty": False}, 38.2),
)

# The settings under the names that `ResiTTA` gives them.
_SWEEPS = {
    "eta": """
        0.001 0.005 0.01 0.05 0.1
        23.0  22.7  22.4 25.6 30.6
        34.1  33.8  33.5 33.9 35.8
        73.5  72.0  70.6 66.7 68.4""",
    "mature_age": """
        100  200  300  400  500  600  700  800
        22.8 22.4 23.0 23.1 23.1 23.0 23.1 23.4
        33.2 33.5 33.6 34.0 34.2 34.4 34.8 34.9
        67.1 66.7 67.1 67.1 67.6 67.6 67.8 67.8""",
    "forget_age": """
        500  1000 1500 2000 2500
        22.6 22.4 22.2 22.5 22.4
        33.6 33.5 33.7 33.6 33.8
        66.9 66.7 67.1 66.8 66.9""",
    "nu_b": """
        0.001 0.005 0.01 0.05 0.1  0.5
        36.6  28.6  25.2 22.4 23.7 28.3
        56.2  40.6  35.4 33.5 34.3 35.6
        80.7  76.2  73.1 66.7 66.9 68.8""",
    "nu_m": """
        0.0001 0.0005 0.001 0.005 0.01 0.05
        24.2   22.7   22.4  27.1  30.7 38.1
        34.9   33.6   33.5  38.0  41.0 48.8
        69.8   68.0   66.7  70.6  78.8 94.1""",
    "lr": """
        0.00005 0.0001 0.0005 0.001 0.005 0.01
        25.4    25.3   22.7   22.4  22.9  23.5
        34.3    34.0   33.7   33.5  34.1  40.3
        68.7    68.3   67.5   66.7  66.5  95.1""",
}

PAPER = Paper(
    table1=_main(_TABLE1),
    table2=_main(_TABLE2),
    table3=_main(_TABLE3),
    table4=_TABLE4,
    sweeps={setting: _sweep(setting, text) for setting, text in _SWEEPS.items()},
)
"""The paper."""
