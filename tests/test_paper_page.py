"""The numbers of docs/paper.md come from the records and from the paper's tables."""

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from resitta.bench.experiments import METHODS
from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord, load
from resitta.models import create
from resitta.norm.bn_layers import bn_layers

ROOT = Path(__file__).parents[1]


def narrow(text: str) -> str:
    """Without bold type and with one space in an empty cell."""
    return re.sub(r"\| +", "| ", text.replace("**", ""))


PAGE = narrow((ROOT / "docs" / "paper.md").read_text("utf-8"))
IMAGENET = "imagenet-resnet50"
FEW = f"{IMAGENET}-13-classes"
VARIANTS = f"{FEW}-variants"


def found(folder: str, method: str, **settings: object) -> RunRecord:
    """The record of seed 1 with these settings; there must be one."""
    records = [load(path) for path in (ROOT / "benchmarks" / "records" / folder).glob(f"{method}-1-*.json")]
    (record,) = [record for record in records if settings.items() <= record.settings.items()]
    return record


def has_row(title: str, cells: Iterable[float | None]) -> bool:
    """Whether the page has this row; None is an empty cell."""
    shown = ["" if cell is None else f"{cell:.1f}" for cell in cells]
    return narrow(f"| {title} | {' | '.join(shown)} |") in PAGE


@pytest.mark.parametrize(
    ("row", "folder", "method", "settings", "corruptions"),
    [
        ("CIFAR-10, first 8 corruptions | NOTE", "cifar10-wrn28x10", "note", {}, 8),
        ("NOTE that learns nothing (`lr=1e-9`)", "cifar10-wrn28x10-note", "note", {"lr": 1e-9, "momentum": 0.01}, 8),
        ("and keeps the source's statistics", "cifar10-wrn28x10-note", "note", {"lr": 1e-9, "momentum": 0}, 8),
        ("CIFAR-100, first 5 corruptions | BN", "cifar100-resnext29", "bn", {}, 5),
        ("CoTTA", "cifar100-resnext29", "cotta", {}, 5),
        ("CoTTA that learns nothing", "cifar100-resnext29-cotta", "cotta", {"lr": 1e-9}, 5),
        ("CoTTA that does not average over views", "cifar100-resnext29-cotta", "cotta", {"threshold": 0}, 5),
    ],
)
def test_the_table_of_reasons_comes_from_the_records(
    row: str, folder: str, method: str, settings: dict[str, float], corruptions: int
) -> None:
    mean = statistics.mean(found(folder, method, **settings).errors[:corruptions])
    assert f"| {row} | {mean:.1f} |" in PAGE


def test_the_table_of_classes_in_a_batch() -> None:
    assert has_row("32 classes in a batch", [found(IMAGENET, method).average for method in METHODS])
    assert has_row("13 classes in a batch", [found(FEW, method).average for method in METHODS])
    rates = {"pl": 5e-3, "tent": 5e-3, "note": 5e-4, "rotta": 5e-3, "resitta": 5e-3}
    large = {method: found(VARIANTS, method, lr=lr).average for method, lr in rates.items()}
    assert has_row("13 classes, steps 5 times as large", [large.get(method) for method in METHODS])
    assert has_row("the paper", [PAPER.main("imagenet")[method].average for method in METHODS])


def test_the_sweep_of_the_learning_rate() -> None:
    wide = [5e-5, 1e-4, 5e-4, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1]
    assert has_row("ResiTTA", [found(f"{IMAGENET}-lr", "resitta", lr=lr).average for lr in wide])
    sweep = PAPER.sweep("lr")
    assert list(sweep.values) == wide[:6]
    assert has_row("in the paper", [*sweep.averages["imagenet"], None, None, None])


def test_the_course_of_pl() -> None:
    assert has_row("PL, 13 classes", found(FEW, "pl").errors[:8])
    assert has_row("PL, 13 classes, steps 5 times as large", found(VARIANTS, "pl", lr=5e-3).errors[:8])
    assert has_row("PL in the paper", PAPER.main("imagenet")["pl"].errors[:8])


def test_the_numbers_in_the_sentences() -> None:
    text = " ".join(PAGE.split())
    small, usual = (found(f"{IMAGENET}-shuffled{size}", "bn").average for size in ("-26", ""))
    assert f"in shuffled batches of 26 BN has {small:.1f}, of 64 it has {usual:.1f}" in text
    assert f"is {68.6 - round(usual, 1):.1f} points better as well" in text
    left = PAPER.main("imagenet")["bn"].average - found(FEW, "bn").average
    assert f"BN remains {left:.1f} points better" in text
    level = found(VARIANTS, "tent", lr=5e-4).average, found(FEW, "bn").average
    assert {f"{error:.1f}" for error in level} == {"76.3"}
    assert "level with BN (76.3 both)" in text
    assert f"With `neighbours=1` it has {found(VARIANTS, 'lame').average:.1f}" in text
    gains = [found(FEW, name).average - found(VARIANTS, name, lr=5e-3).average for name in ("rotta", "resitta")]
    assert "RoTTA and ResiTTA become better by {:.1f} and {:.1f} points".format(*gains) in text
    middle = [found(FEW, name).average for name in ("cotta", "bn", "pl")]
    assert middle == sorted(middle)
    assert f"within {middle[2] - middle[0]:.1f} points" in text
    everything = found(VARIANTS, "pl", parameters="all").errors[0]
    assert f"{everything:.1f} under the first corruption" in text


def test_the_sizes_of_the_parameters(beds: Path) -> None:
    sizes = []
    for model, bed in {"resnet50": IMAGENET, "wrn28x10": "cifar10-wrn28x10", "resnext29": "cifar100-resnext29"}.items():
        layers = bn_layers(create(model, beds / f"{bed}.safetensors"))
        sizes.append(torch.cat([layer.weight.detach().abs() for _, layer in layers]).mean().item())
    sentence = "weights of our ResNet-50 average {:.2f}, those of WRN-28-10 and ResNeXt-29 {:.2f} and {:.2f}"
    assert sentence.format(*sizes) in " ".join(PAGE.split())
