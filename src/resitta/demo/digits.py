"""Real handwritten digits (the 1,797 that come with scikit-learn), painted on coloured paper, and a small network.

The scans are black and white, which no camera ever sees: brightness or fog would be either harmless or fatal. Painted
in random colours on uneven, textured paper they have more of the statistics of photographs.
"""

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.bench.loop import Progress
from resitta.bench.protocol import Protocol
from resitta.bench.runner import BenchSpec
from resitta.checkpoint.atomic_write import atomic_write
from resitta.data.datasets import ArrayImages
from resitta.demo.subject import Bar, Subject
from resitta.errors import require

SIDE = 32
TRAINING = 1000
STEPS = 640
BATCH = 64

INTRO = """A small network was trained on clean handwritten digits. The stream has 15 corruptions in sequence, no domain
labels, and temporally correlated classes: neighbouring images mostly show the same digit. The methods see no labels;
they adapt to the images alone.

BN and TENT normalise by the batch at hand, which holds few classes on such a stream. RoTTA and ResiTTA keep a balanced
memory and move the statistics slowly; ResiTTA also pulls them toward the source."""

FEW = """{samples} images per corruption instead of {usual} are few for the statistics to adapt. Plain `resitta demo
digits` compares the methods."""


@dataclass(frozen=True)
class Digits:
    """Ink (float N×1×32×32, 0 paper to 1 ink) with labels, divided into a part to train on and a part to stream."""

    train: Tensor
    train_labels: NDArray[np.int64]
    test: Tensor
    test_labels: NDArray[np.int64]


def load_digits() -> Digits:
    """Enlarge the 8×8 scans to 32×32 with a margin, and divide them by a fixed permutation."""
    scans = require("sklearn.datasets", "demo").load_digits()
    ink = torch.from_numpy(scans.images).float().div(16)[:, None]
    ink = F.interpolate(ink, size=(24, 24), mode="bicubic", align_corners=False).clamp(0, 1)
    ink = F.pad(ink, (4, 4, 4, 4))
    order = np.random.default_rng(0).permutation(len(ink))
    train, test = order[:TRAINING], order[TRAINING:]
    labels = scans.target.astype(np.int64)
    return Digits(ink[train], labels[train], ink[test], labels[test])


def painted(ink: Tensor, generator: torch.Generator) -> Tensor:
    """Paint each digit in a random colour, darker or lighter than its paper, in [0, 1]."""
    n = len(ink)
    shades = torch.rand(n, 3, 2, 2, generator=generator) * 0.4 + torch.rand(n, 1, 1, 1, generator=generator) * 0.6
    grain = torch.randn(n, 3, SIDE // 2, SIDE // 2, generator=generator) * 0.08
    paper = F.interpolate(shades, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
    paper = paper + F.interpolate(grain, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    contrast = torch.rand(n, 1, 1, 1, generator=generator) * 0.3 + 0.2
    tint = torch.rand(n, 3, 1, 1, generator=generator) + 0.5
    lighter = torch.where(paper.mean(dim=(1, 2, 3), keepdim=True) < 0.5, 1.0, -1.0)
    return (paper + ink * lighter * contrast * tint).clamp(0, 1)


def digit_network(width: int = 8) -> nn.Module:
    """Five convolutions with BatchNorm and a linear head."""
    widths = (3, width, 2 * width, 2 * width, 4 * width, 4 * width)
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        stride = 2 if number % 2 == 0 else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def train(digits: Digits, progress: Progress | None = None, *, seed: int = 0) -> nn.Module:
    """Train a network on clean, slightly translated and rotated digits, with new colours in every batch."""
    labels = torch.from_numpy(digits.train_labels)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = digit_network()
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=STEPS)
    for done in range(STEPS):
        batch = torch.randint(TRAINING, (BATCH,), generator=generator)
        images = painted(moved(digits.train[batch], generator), generator)
        loss = F.cross_entropy(network(images), labels[batch], label_smoothing=0.1)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if progress:
            progress(done + 1, STEPS)
    return network.eval()


def moved(ink: Tensor, generator: torch.Generator) -> Tensor:
    """Translate and rotate each digit a little."""
    angle = (torch.rand(len(ink), generator=generator) - 0.5) * 0.3
    shift = (torch.rand(len(ink), 2, generator=generator) - 0.5) * 0.3
    rows = torch.stack((angle.cos(), -angle.sin(), shift[:, 0], angle.sin(), angle.cos(), shift[:, 1]), dim=1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(ink.shape), align_corners=False)
    return F.grid_sample(ink, grid, align_corners=False)


def cache_file() -> Path:
    """Where the trained network is kept: $RESITTA_CACHE, or the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "resitta"
    return Path(os.environ.get("RESITTA_CACHE", home)) / f"painted-digits-{STEPS}.pt"


def cached_network() -> nn.Module | None:
    """Return the network trained earlier, or None if there is none that can be read."""
    network = digit_network()
    try:
        network.load_state_dict(torch.load(cache_file(), weights_only=True))
    except Exception:  # a cache that cannot be read is made again
        return None
    return network.eval()


def keep(network: nn.Module) -> None:
    """Put a trained network into the cache, atomically."""
    with atomic_write(cache_file(), durable=False) as temporary:
        torch.save(network.state_dict(), temporary)


def source_network(digits: Digits, progress: Progress, *, retrain: bool) -> nn.Module:
    """The network trained on clean digits, from the cache if it is there."""
    cached = None if retrain else cached_network()
    network = cached or train(digits, progress)
    if cached is None:
        keep(network)
    progress(1, 1)
    return network


def unseen_digits(digits: Digits, samples: int, seed: int) -> ArrayImages:
    """Painted digits that the network has not seen; one that recurs is painted again, so that no two are equal."""
    copies = math.ceil(samples / len(digits.test))
    ink = digits.test.repeat(copies, 1, 1, 1)[:samples]
    images = painted(ink, torch.Generator().manual_seed(seed))
    return ArrayImages(images.mul(255).byte(), np.tile(digits.test_labels, copies)[:samples], classes=10)


def open_bench(out: Path, *, samples: int, seed: int, retrain: bool, bar: Bar) -> BenchSpec:
    """The paper's stream of painted digits, and the network, which is trained unless one is kept."""
    torch.set_num_threads(1)  # the network is so small that a second thread only waits
    digits = load_digits()
    network = source_network(digits, bar("training"), retrain=retrain)
    clean = ArrayImages(painted(digits.train, torch.Generator().manual_seed(0)), digits.train_labels)
    images = unseen_digits(digits, samples, seed)
    return BenchSpec(protocol=Protocol(corruption_seed=seed), model=network, data=images, clean=clean, out=out)


DIGITS = Subject(
    title="Handwritten digits under corruption",
    intro=INTRO,
    few=FEW,
    classes=tuple("0123456789"),
    methods=("source", "bn", "tent", "rotta", "resitta"),
    samples=3000,
    fast_samples=300,
    open=open_bench,
)
