"""Real photographs: 2,000 test images of CIFAR-10, and a WRN-16-1 trained on its training images.

Both are files of the package. The file NOTICE says where they come from; `benchmarks/demo_photographs.py` makes them.
"""

from pathlib import Path

import numpy as np
from torch import nn

from resitta.bench.protocol import Protocol
from resitta.bench.runner import BenchSpec
from resitta.data.datasets import ArrayImages
from resitta.demo.subject import Bar, Subject
from resitta.errors import BadSetting, require
from resitta.models import create

FOLDER = Path(__file__).parent / "photographs"
CHECKPOINT = FOLDER / "cifar10-wrn16x1.safetensors"
MODEL = "wrn16x1"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EACH, SIDE = 200, 32

INTRO = """A small network (WRN-16-1) was trained on clean photographs. The stream has 15 corruptions in sequence, no
domain labels, and temporally correlated classes: neighbouring images mostly show the same class. The methods see no
labels; they adapt to the images alone.

BN normalises by the batch at hand, which holds few classes on such a stream. RoTTA and ResiTTA keep a balanced memory
and move the statistics slowly. Tide looks for changes of domain and averages the statistics of each domain from its
first images on, balanced between classes. Its label prior in time uses the correlation: what the last images showed
tells much about the next one."""

FEW = """{samples} images per corruption instead of {usual} are few to adapt to, and the errors are not those of the
README. Plain `resitta demo` compares the methods."""


def sheet(name: str) -> Path:
    """The file with the images of a class, which stand below each other."""
    return FOLDER / f"{name}.webp"


def load_photographs() -> ArrayImages:
    """All 2,000, class by class."""
    pillow = require("PIL.Image", "demo")
    sheets = [np.asarray(pillow.open(sheet(name)).convert("RGB")) for name in CLASSES]
    return ArrayImages(np.concatenate(sheets).reshape(-1, SIDE, SIDE, 3), np.repeat(np.arange(len(CLASSES)), EACH))


def source_network() -> nn.Module:
    """The network that was trained on clean photographs."""
    return create(MODEL, CHECKPOINT)


def open_bench(out: Path, *, samples: int, seed: int, retrain: bool, bar: Bar) -> BenchSpec:  # noqa: ARG001
    """The paper's stream of the photographs; the same as `benchmarks/beds.py --per-domain SAMPLES` has."""
    if retrain:
        advice = "leave out --retrain, or run `resitta demo digits --retrain`"
        raise BadSetting(f"the network of the photographs comes trained; {advice}")
    images = load_photographs()
    if samples > len(images):
        raise BadSetting(f"there are {len(images):,} photographs, found {samples:,} samples; ask for as many or fewer")
    protocol = Protocol(per_domain=samples)
    return BenchSpec(protocol=protocol, model=MODEL, checkpoint=CHECKPOINT, data=images, out=out)


PHOTOGRAPHS = Subject(
    title="Photographs under corruption",
    intro=INTRO,
    few=FEW,
    classes=CLASSES,
    methods=("source", "bn", "rotta", "resitta", "tide"),
    samples=500,
    fast_samples=100,
    open=open_bench,
)
