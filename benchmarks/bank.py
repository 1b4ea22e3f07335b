"""Samples per second that EntroBank decides on, plain and indexed, on one core.

python benchmarks/bank.py
"""

import time

import numpy as np
import torch

from resitta.components.entrobank import EntroBank
from resitta.components.indexed_entrobank import IndexedEntroBank

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


if __name__ == "__main__":
    torch.set_num_threads(1)
    for run in (1, 50):
        plain = adds_per_second(EntroBank, 64, 10, 30_000, run)
        small = adds_per_second(IndexedEntroBank, 64, 10, 200_000, run)
        large = adds_per_second(IndexedEntroBank, 16_384, 1000, 300_000, run)
        alike = adds_per_second(IndexedEntroBank, 16_384, 1000, 300_000, run, ages=16_384 // 64)
        print(f"runs of {run:2}: plain 64/10 {plain:8,.0f}   indexed 64/10 {small:8,.0f} ({small / plain:.1f}x)")
        print(f"   indexed 16,384/1,000: {large:8,.0f} ({small / large:.1f}x slower; every sample replaces an old one)")
        print(f"   with ages in proportion: {alike:8,.0f} ({small / alike:.1f}x slower)")
