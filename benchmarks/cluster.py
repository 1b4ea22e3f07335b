"""What it costs to adapt many streams: per stream, per update of a group, per engine of a bench.

python benchmarks/cluster.py sizes             # memory of one stream beside the model, messages of an update
python benchmarks/cluster.py group --ranks 2   # an update together over gloo, against one alone
python benchmarks/cluster.py sweep             # twelve short runs: one process, a pool, a Ray cluster
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import resitta
from resitta.bench.jobs import run_jobs
from resitta.bench.protocol import Protocol
from resitta.bench.runner import Job
from resitta.bench.spec import Recipe
from resitta.distributed.executors import Executor
from resitta.models import MODELS
from resitta.models import create as create_model
from resitta.norm.bn_layers import bn_layers
from resitta.registry import create

UPDATES = 10


def sizes() -> None:
    """Print what a stream owns, and what a group sends."""
    print(f"{'model':<12}{'weights MB':>12}{'own MB':>9}{'bank MB':>9}{'messages':>10}{'KB each way, 2 ranks':>22}")
    for name, entry in MODELS.items():
        model = create_model(name)
        channels, layers = sum(layer.num_features for _, layer in bn_layers(model)), len(bn_layers(model))
        weights = sum(p.numel() for p in model.parameters())
        own = 16 * channels  # two networks with affine parameters, statistics and the source's; Adam's moments
        bank = 64 * 3 * entry.image_size**2
        sent = 2 * 2 * (2 * channels + layers) + 2 * channels  # moments of all ranks in both networks, gradients
        numbers = f"{weights * 4e-6:>12.1f}{own * 4e-6:>9.2f}{bank * 4e-6:>9.1f}"
        print(f"{name:<12}{numbers}{2 * layers + 3:>10}{sent * 4e-3:>22.0f}")


def group(ranks: int, model: str) -> None:
    """Print the time of an update, alone and together."""
    alone, together = (_spawned(count, model) for count in (1, ranks))
    print(f"{model}, banks of 64: {alone * 1000:.0f} ms alone, {together * 1000:.0f} ms with {ranks} ranks", end=" ")
    print(f"on this machine: {together / alone:.2f} times as long, for {ranks} times the samples")


def _spawned(ranks: int, model: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (ranks, model, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
        return max(float(path.read_text()) for path in Path(folder).glob("*.txt"))


def _rank(rank: int, ranks: int, model: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(minutes=2), ranks, rank)
    torch.manual_seed(0)  # all ranks need the same weights
    adapter = resitta.adapt(create_model(model), "resitta", group="world")
    side = MODELS[model].image_size
    adapter(torch.rand(64, 3, side, side, generator=torch.Generator().manual_seed(rank)))
    learner: Any = adapter.learner
    begin = time.perf_counter()
    for _ in range(UPDATES):
        learner.update()
    Path(folder, f"{rank}.txt").write_text(str((time.perf_counter() - begin) / UPDATES))


def sweep(images: int) -> None:
    """Print the time of twelve runs on each engine, start included."""
    names: tuple[Literal["local", "processes", "ray"], ...] = ("local", "processes", "ray")
    methods = [create(name) for name in ("source", "bn", "rotta", "resitta")]
    jobs = [Job(method=method, seed=seed) for method in methods for seed in (1, 2, 3)]
    tables = []
    for name in names:
        with _recipe(images) as recipe:
            begin = time.perf_counter()
            runs = run_jobs(recipe, jobs, lambda _: lambda *_: None, Executor(name=name, workers=2))
            print(f"{name:<10}{time.perf_counter() - begin:>8.1f} s", flush=True)
        tables.append([(run.errors, run.entropy_over_time) for run in runs])
    print("the same errors and entropies" if tables[0] == tables[1] == tables[2] else f"THEY DIFFER: {tables}")


@contextmanager
def _recipe(images: int) -> Iterator[Recipe]:
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        for corruption in ("fog", "contrast"):
            np.save(folder / f"{corruption}.npy", rng.integers(0, 256, (5 * images, 32, 32, 3), np.uint8))
        np.save(folder / "labels.npy", np.arange(5 * images) % 10)
        torch.manual_seed(0)
        torch.save(create_model("wrn16x1").state_dict(), folder / "weights.pt")
        protocol, weights = Protocol(corruptions=("fog", "contrast")), folder / "weights.pt"
        yield Recipe(protocol=protocol, model="wrn16x1", data=folder, checkpoint=weights, out=folder / "out")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sizes", "group", "sweep"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="wrn16x1")
    parser.add_argument("--images", type=int, default=1000, help="images per domain of the sweep")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "sizes":
        sizes()
    elif args.what == "group":
        group(args.ranks, args.model)
    else:
        sweep(args.images)


if __name__ == "__main__":
    main()
