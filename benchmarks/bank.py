"""Samples per second that EntroBank decides on, plain and indexed, on one core.

    python benchmarks/bank.py

`64/10` is a bank of 64 samples and 10 classes. With the paper's limits of age nearly every sample replaces an old one
in a bank of 16,384; `ages in proportion` makes them longer with the capacity. `benchmarks/speed.py` takes the same
figures into its record.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from resitta.memory.entrobank import EntroBank
from resitta.memory.indexed_entrobank import IndexedEntroBank

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


def main() -> None:
    """Print every case with its ratio to the small bank in the same order of classes."""
    found = rates()
    for name, rate in found.items():
        small = found[f"64/10, {'runs of 50' if 'runs' in name else 'mixed classes'}"]
        print(f"{name:50} {rate:9,.0f} a second   {small / rate:5.2f} x the time of 64/10")


if __name__ == "__main__":
    main()
