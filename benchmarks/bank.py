"""What EntroBank's decisions cost, plain and indexed, on one core.

    python benchmarks/bank.py                    # samples per second
    python benchmarks/bank.py --step             # microseconds per sample, and the share of a step of WRN-16-1
    python benchmarks/bank.py --step --device cuda

`64/10` is a bank of 64 samples and 10 classes. With the paper's limits of age nearly every sample replaces an old one
in a bank of 16,384; `ages in proportion` makes them longer with the capacity. `benchmarks/speed.py` takes the same
figures into its record. A step is a batch of 64 images and its update.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import torch

import resitta
from resitta.memory.entrobank import EntroBank, IndexedEntroBank
from resitta.models.zoo import create

BATCH = 64


def adds_per_second(
    kind: type[EntroBank], capacity: int, classes: int, samples: int, run: int, *, ages: int = 1
) -> float:
    """Fill a bank, then time further samples that come in runs of one class; `ages` multiplies the limits of age."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, classes, samples // run + 1), run)
    entropies = rng.gamma(1.0, 0.5, samples)
    bank = kind(capacity, generator=torch.Generator(), forget_age=1000 * ages, mature_age=200 * ages)
    images = torch.zeros(BATCH, 3, 1, 1)
    starts = range(0, samples - BATCH, BATCH)
    warm = min(len(starts) // 4, 4 * capacity // BATCH)
    for number, start in enumerate(starts):
        if number == warm:
            begin = time.perf_counter()
        bank.add(images, labels[start : start + BATCH], entropies[start : start + BATCH])
    return (len(starts) - warm) * BATCH / (time.perf_counter() - begin)


def rates(rounds: int = 5) -> dict[str, float]:
    """Samples per second of every case, on one core: the median of several rounds, in turns."""
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], float]] = {}
    for run in (1, 50):
        order, large = "mixed classes" if run == 1 else f"runs of {run}", (IndexedEntroBank, 16_384, 1000, 200_000, run)
        cases[f"plain, 64/10, {order}"] = partial(adds_per_second, EntroBank, 64, 10, 20_000, run)
        cases[f"64/10, {order}"] = partial(adds_per_second, IndexedEntroBank, 64, 10, 200_000, run)
        cases[f"16,384/1,000, {order}"] = partial(adds_per_second, *large)
        cases[f"16,384/1,000, {order}, ages in proportion"] = partial(adds_per_second, *large, ages=16_384 // 64)
    found = [{name: measure() for name, measure in cases.items()} for _ in range(rounds)]
    return {name: statistics.median(one[name] for one in found) for name in cases}


def step_ms(kind: type[EntroBank], device: str, steps: int = 20) -> float:
    """Milliseconds of a step of ResiTTA on WRN-16-1 with this bank, once the bank is full: the median."""
    images = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    with mock.patch("resitta.methods.resitta.IndexedEntroBank", kind):
        adapter = resitta.adapt(create("wrn16x1").to(device), "resitta")
    found = []
    for step in range(steps + 20):
        begin = time.perf_counter()
        adapter(images.roll(step, dims=3))
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - begin))
    return statistics.median(found[20:])


def print_step(device: str, rounds: int = 3) -> None:
    """Print microseconds per sample, their share of a step, and whole steps with either bank."""
    torch.set_num_threads(1)
    kinds = {"plain": EntroBank, "indexed": IndexedEntroBank}
    found = [{name: step_ms(kind, device) for name, kind in kinds.items()} for _ in range(rounds)]
    steps = {name: statistics.median(one[name] for one in found) for name in kinds}
    for name, ms in steps.items():
        print(f"step of WRN-16-1 on {device}, {name} bank of 64: {ms:.2f} ms per batch of {BATCH}")
    for capacity in (64, 512, 4096):
        for run in (1, 50):
            for name, kind in kinds.items():
                samples = 2 * capacity + (4_000 if kind is EntroBank else 40_000)
                rate = [adds_per_second(kind, capacity, 10, samples, run) for _ in range(rounds)]
                each = 1e6 / statistics.median(rate)
                share = 100 * each * BATCH / 1000 / steps["indexed"]
                print(f"{capacity:5}/10, runs of {run:2}, {name:8} {each:6.1f} us a sample  {share:5.1f} % of a step")


def main() -> None:
    """Print every case with its ratio to the small bank in the same order of classes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if chosen.step:
        print_step(chosen.device)
        return
    found = rates()
    for name, rate in found.items():
        small = found[f"64/10, {'runs of 50' if 'runs' in name else 'mixed classes'}"]
        print(f"{name:50} {rate:9,.0f} a second   {small / rate:5.2f} x the time of 64/10")


if __name__ == "__main__":
    main()
