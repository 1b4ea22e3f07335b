"""Many streams on one model: memory of a stream, cost of a mixed batch, and twenty cameras of which one sends noise.

    python benchmarks/fleet.py memory --network resnet18 --streams 200 --bank-bytes      # ten minutes on one core
    python benchmarks/fleet.py cost --network resnet18                                   # five minutes on one core
    python benchmarks/fleet.py memory --network wrn28x10 --streams 1000 --device cuda
    python benchmarks/fleet.py cost --network wrn28x10 --device cuda
    python benchmarks/fleet.py cameras --images 512                                      # ten minutes on one core
    python benchmarks/fleet.py nearest --images 512

`memory` and `cost` take networks with random weights. `memory` gives every stream one update, on two images, and fills
its bank without predictions. `cost` predicts 64 images of 64 streams that have all learned, against the same images
through the model itself and through one paused adapter, and compares the logits with those of 64 separate adapters.
`cameras` and `nearest` need the folder of testbeds: $RESITTA_BEDS, or --beds.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beds import load_network, with_testbeds
from torch import Tensor, nn
from torch.nn import functional as F

import resitta
from resitta.bench.protocol import CLEAN, Protocol, open_domains
from resitta.data.corruptions import CORRUPTIONS, EXTRA
from resitta.models import create as create_model
from resitta.norm.bn_layers import bn_layers

CAMERAS = 20
EACH = 2
"""How many images of each camera a mixed batch holds."""
NOISY = "camera-19"


# --- networks ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two 3×3 convolutions around which the input passes, as in ResNet-18."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels_in, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3, 1), nn.BatchNorm2d(channels)
        changes = stride > 1 or channels_in != channels
        self.down = (
            nn.Sequential(_conv(channels_in, channels, 1, stride), nn.BatchNorm2d(channels)) if changes else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        h += x if self.down is None else self.down(x)
        return F.relu(h, inplace=True)


def _conv(channels_in: int, channels: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)


def resnet18() -> nn.Module:
    """The network of 224×224 images, with random weights."""
    stem = _conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    stages = [Block(*shape) for before, now, stride in widths for shape in ((before, now, stride), (now, now, 1))]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def network(args: argparse.Namespace) -> tuple[nn.Module, int]:
    """The network that was asked for, and the side of its images."""
    torch.manual_seed(0)
    model, side = (resnet18(), 224) if args.network == "resnet18" else (create_model(args.network), 32)
    with torch.no_grad():
        model.train()(torch.rand(8, 3, side, side))  # statistics that fit the weights
    return model.eval().to(args.device), side


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(args: argparse.Namespace) -> None:
    """Print the memory of a stream that has learned and whose bank is full."""
    model, side = network(args)
    settings = {"update_every": 10**9, "bank_bytes": args.bank_bytes}
    fleet = resitta.fleet(model, "resitta", max_streams=args.streams + 1, **settings)
    learn_once(fleet, "first", side, args)
    before, started = used(args), time.perf_counter()
    for number in range(args.streams):
        learn_once(fleet, f"camera-{number}", side, args)
    grown = (used(args) - before) / args.streams
    adapter = fleet["first"].adapter
    memory = adapter.learner.memory()
    assert memory is not None
    bank: Tensor = memory.images
    held = 4 * 4 * sum(layer.num_features for _, layer in bn_layers(model))
    needed = held + bank.nbytes
    tensors = owned_bytes(adapter)
    seconds = time.perf_counter() - started
    print(f"{args.network}, {args.streams} streams, {side}×{side}, on {args.device}; {seconds:.0f} s")
    print(f"statistics and affine parameters {held / 1e3:,.0f} kB + bank {bank.nbytes / 1e3:,.0f} kB")
    print(f"tensors of a stream {tensors / 1e3:,.0f} kB: {tensors / needed:.2f} times that")
    print(f"memory of a stream {grown / 1e3:,.0f} kB: {grown / needed:.2f} times that")
    print(
        f"without the bank: {(grown - bank.nbytes) / 1e3:,.0f} kB; the model itself {model_bytes(model) / 1e3:,.0f} kB"
    )


def learn_once(fleet: Any, name: str, side: int, args: argparse.Namespace) -> None:
    """One update on two images, then a full bank; no images are predicted."""
    generator = torch.Generator().manual_seed(len(fleet))
    adapter = fleet[name].adapter
    for count in (2, 62):
        images = torch.rand(count, 3, side, side, generator=generator).to(args.device)
        logits = torch.randn(count, 1000 if side == 224 else 10, generator=generator).to(args.device)
        adapter.learn_from(images, logits)
        if count == 2:
            with torch.enable_grad():
                adapter.learner.update()


def used(args: argparse.Namespace) -> int:
    """Bytes in use: on the device, or of the process."""
    gc.collect()
    if args.device != "cpu":
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def owned_bytes(adapter: Any) -> int:
    """Bytes of all tensors and arrays of a stream that it does not share with the model."""
    shared = {t.untyped_storage().data_ptr() for t in (*adapter.source.parameters(), *adapter.source.buffers())}
    found: dict[int, int] = {}
    for module in adapter.modules():
        optimizer = getattr(module, "inner", None)
        kept = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
        arrays = [torch.from_numpy(value) for value in vars(module).values() if isinstance(value, np.ndarray)]
        own = (*module._parameters.values(), *module._buffers.values(), *kept, *arrays)
        for tensor in filter(lambda value: isinstance(value, Tensor), own):
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(size for place, size in found.items() if place not in shared)


def model_bytes(model: nn.Module) -> int:
    """Bytes of the weights."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


# --- cost -------------------------------------------------------------------------------------------------------------


def cost(args: argparse.Namespace) -> None:
    """Print the time of a mixed batch against a plain one, and how far its logits are from separate adapters'."""
    model, side = network(args)
    fleet = resitta.fleet(model, "resitta", update_every=10**9, bank_bytes=args.bank_bytes)
    names = [f"camera-{number}" for number in range(64)]
    for name in names:
        learn_once(fleet, name, side, args)
        perturb(fleet[name].adapter.learner.exportable_network())
    images = torch.rand(64, 3, side, side, generator=torch.Generator().manual_seed(1)).to(args.device)
    with fleet.paused():
        mixed = fleet(images, names)
        alone = torch.cat([fleet[name].adapter.learner.predict(images[i : i + 1]) for i, name in enumerate(names)])
        spread = (alone - fleet[names[0]](images)).abs().mean()
    worst = (mixed - alone).abs().max()
    print(f"logits are from those of 64 adapters by at most {worst:.1e}; streams differ by {spread:.1e} on average")
    rows: dict[str, Callable[[], Any]] = {
        "the model": lambda: model(images),
        "one adapter, paused": lambda: paused(fleet, images, names[0]),
        "mixed batch, paused": lambda: paused(fleet, images, names),
        "one adapter, learning": lambda: fleet(images, names[0]),
        "mixed batch, learning": lambda: fleet(images, names),
    }
    with torch.no_grad():
        times = alternately(rows, args)
    best = min(times["the model"], times["one adapter, paused"])
    for name, seconds in times.items():
        print(f"{name}: {1e3 * seconds:.2f} ms, {seconds / best:.2f} times the faster of the first two")


@torch.no_grad()
def perturb(network: Any) -> None:
    """Move statistics and affine parameters by an amount that differs between streams."""
    layers: list[Any] = [layer for _, layer in bn_layers(network.model)]
    for layer in layers:
        layer.running_mean += 0.3 * layer.running_var.sqrt() * torch.randn_like(layer.running_mean)
        layer.running_var *= 0.5 + torch.rand_like(layer.running_var)
        layer.weight *= 0.8 + 0.4 * torch.rand_like(layer.weight)


def paused(fleet: Any, images: Tensor, names: str | list[str]) -> Tensor:
    """Predict only."""
    with fleet.paused():
        logits: Tensor = fleet(images, names)
    return logits


def alternately(functions: dict[str, Callable[[], Any]], args: argparse.Namespace) -> dict[str, float]:
    """The median time of each function, called in turn; on the CPU, that of the processor."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(args.repeats + args.warm_up):
        for name, function in functions.items():
            synchronize(args)
            started = clock()
            function()
            synchronize(args)
            if turn >= args.warm_up:
                times[name].append(clock() - started)
    return {name: statistics.median(found) for name, found in times.items()}


def synchronize(args: argparse.Namespace) -> None:
    """Wait for the device."""
    if args.device != "cpu":
        torch.cuda.synchronize()


# --- cameras ----------------------------------------------------------------------------------------------------------


class Cameras:
    """Nineteen cameras, each with a corruption of its own, and one of clean images that may send noise instead."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = load_network(args.bed, args.beds, args.device)
        self.names = [f"camera-{number}" for number in range(CAMERAS)]
        self.own = [self._read(name, seed) for seed, name in enumerate((*CORRUPTIONS, *EXTRA, CLEAN))]

    def _read(self, corruption: str, seed: int) -> tuple[Tensor, Tensor]:
        """A camera's images in its order: temporally correlated."""
        protocol = Protocol(corruptions=(corruption,), per_domain=2 * self.args.images)
        sets = open_domains(protocol, self.args.beds / "cifar10-test.zip", cache=self.args.cache)
        batches = list(protocol.stream(sets, seed).batches(64, self.args.device))
        images, labels = torch.cat([b.images for b in batches]), torch.cat([torch.as_tensor(b.labels) for b in batches])
        return images, labels

    def batches(self, *, noise: bool, part: int = 0) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """Mixed batches, two images of each camera; `part` 1 is what the cameras show later."""
        generator, first = torch.Generator().manual_seed(1), part * self.args.images
        for start in range(first, first + self.args.images, EACH):
            images = torch.stack([own[start : start + EACH] for own, _ in self.own], dim=1)
            labels = torch.stack([own[start : start + EACH] for _, own in self.own], dim=1)
            if noise:
                images[:, -1] = torch.rand(images[:, -1].shape, generator=generator).to(images.device)
            yield images.flatten(0, 1), labels.flatten(), self.names * EACH

    def errors(self, predict: Callable[[Tensor, list[str]], Tensor], **views: Any) -> Tensor:
        """The error of each camera in per cent."""
        wrong = [
            (predict(images, names).argmax(dim=1).cpu() != labels.cpu()).view(EACH, CAMERAS)
            for images, labels, names in self.batches(**views)
        ]
        return 100 * torch.cat(wrong).float().mean(dim=0)


def cameras(args: argparse.Namespace) -> None:
    """Print the mean error of nineteen cameras, with and without noise from the twentieth."""
    ground = Cameras(args)
    ways: dict[str, Callable[[], Callable[[Tensor, list[str]], Tensor]]] = {
        "source": lambda: adapter_of(resitta.adapt(ground.model, "source")),
        "a fleet": lambda: resitta.fleet(ground.model, args.method, updates_per_call=None),
        "a fleet, guarded": lambda: resitta.fleet(ground.model, args.method, updates_per_call=None, guard=True),
        "a fleet, 2 updates per call": lambda: resitta.fleet(ground.model, args.method),
        "one adapter for all": lambda: adapter_of(resitta.adapt(ground.model, args.method)),
        "one guarded adapter for all": lambda: adapter_of(resitta.adapt(ground.model, args.method, guard=True)),
    }
    print(
        f"{args.bed}, {args.method}, {args.images} images per camera: error of the nineteen (%), without and with noise"
    )
    for name, make in ways.items():
        clean, noisy = (ground.errors(make(), noise=noise)[:-1] for noise in (False, True))
        changed = int((clean != noisy).sum())
        print(f"{name}: {clean.mean():.2f} {noisy.mean():.2f}, {changed} cameras differ", flush=True)


def adapter_of(adapter: Any) -> Callable[[Tensor, list[str]], Tensor]:
    """One adapter for all streams."""

    def predict(images: Tensor, _: list[str]) -> Tensor:
        logits: Tensor = adapter(images)
        return logits

    return predict


def nearest(args: argparse.Namespace) -> None:
    """Print the errors of twenty new cameras, beside twenty known ones that look alike, by where they start."""
    ground = Cameras(args)
    print(f"{args.bed}, {args.method}: error of new cameras (%) over their first images")
    for start in ("source", "nearest"):
        fleet = resitta.fleet(ground.model, args.method, updates_per_call=None, start=start)
        ground.errors(fleet, noise=False)
        errors = ground.errors(partial(as_new, fleet), noise=False, part=1)
        print(f"start={start!r}: {errors.mean():.2f}", flush=True)


def as_new(fleet: Any, images: Tensor, names: list[str]) -> Tensor:
    """Predict and learn under new names."""
    logits: Tensor = fleet(images, [f"new {name}" for name in names])
    return logits


def main() -> None:
    """Run one part."""
    parser = with_testbeds(__doc__)
    parser.add_argument("part", choices=["memory", "cost", "cameras", "nearest"])
    parser.add_argument("--network", default="resnet18", help="resnet18 or a model of resitta.models")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--bank-bytes", action="store_true", help="keep the bank's images as bytes")
    parser.add_argument("--method", default="resitta")
    parser.add_argument("--images", type=int, default=512, help="images per camera")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="three or more on a device that records CUDA graphs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/fleet"), help="folder of corrupted images")
    args = parser.parse_args()
    {"memory": memory, "cost": cost, "cameras": cameras, "nearest": nearest}[args.part](args)


if __name__ == "__main__":
    main()
