"""Real handwritten digits (the 1,797 that come with scikit-learn) and a small BatchNorm network trained on them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import require

SIDE = 32
TRAINING = 1000
EPOCHS = 15
BATCH = 64


@dataclass(frozen=True)
class Digits:
    """Colour images (uint8 N×3×32×32) with labels, divided into a part to train on and a part to stream."""

    train: Tensor
    train_labels: NDArray[np.int64]
    test: Tensor
    test_labels: NDArray[np.int64]


def load_digits() -> Digits:
    """Enlarge the 8×8 scans to 32×32 with a margin, and divide them by a fixed permutation."""
    scans = require("sklearn.datasets", "demo").load_digits()
    images = torch.from_numpy(scans.images).float().div(16)[:, None]
    images = F.interpolate(images, size=(24, 24), mode="bicubic", align_corners=False).clamp(0, 1)
    images = F.pad(images, (4, 4, 4, 4)).mul(255).byte().expand(-1, 3, -1, -1).contiguous()
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:TRAINING], order[TRAINING:]
    labels = scans.target.astype(np.int64)
    return Digits(images[train], labels[train], images[test], labels[test])


def digit_network(width: int = 16) -> nn.Module:
    """Five convolutions with BatchNorm and a linear head."""
    widths = (3, width, 2 * width, 2 * width, 4 * width, 4 * width)
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        stride = 2 if number % 2 == 0 else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def train(digits: Digits, progress: Callable[[int, int], None] | None = None) -> nn.Module:
    """Train a network on clean, slightly moved and turned digits."""
    images = digits.train.float() / 255
    labels = torch.from_numpy(digits.train_labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = digit_network()
        steps = EPOCHS * -(-len(images) // BATCH)
        optimizer = torch.optim.Adam(network.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
        for done in range(steps):
            batch = torch.randint(len(images), (BATCH,))
            loss = F.cross_entropy(network(moved(images[batch])), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            if progress:
                progress(done + 1, steps)
    return network.eval()


def moved(images: Tensor) -> Tensor:
    """Shift and turn each image a little."""
    angle = (torch.rand(len(images)) - 0.5) * 0.3
    shift = (torch.rand(len(images), 2) - 0.5) * 0.3
    rows = torch.stack((angle.cos(), -angle.sin(), shift[:, 0], angle.sin(), angle.cos(), shift[:, 1]), dim=1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def cache_file() -> Path:
    """Where the trained network is kept: $RESITTA_CACHE, or the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "resitta"
    return Path(os.environ.get("RESITTA_CACHE", home)) / f"digits-{EPOCHS}x{TRAINING}.pt"


def cached_network() -> nn.Module | None:
    """Return the network trained earlier, or None if there is none that can be read."""
    network = digit_network()
    try:
        network.load_state_dict(torch.load(cache_file(), weights_only=True))
    except (OSError, RuntimeError, ValueError, TypeError, EOFError, AttributeError, KeyError):
        return None
    return network.eval()


def keep(network: nn.Module) -> None:
    """Put a trained network into the cache, at once or not at all."""
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    torch.save(network.state_dict(), temporary)
    temporary.replace(path)
