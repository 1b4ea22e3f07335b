"""Which number shows a drift detector of river the borders of domains, on the photographs of `resitta demo`?

python benchmarks/drift_detectors.py --seeds 1 2     # needs river; a few minutes per seed
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from river import drift

from resitta.adapter import adapt
from resitta.bench.runner import Bench
from resitta.demo.photographs import open_bench
from resitta.training.domain_shift import image_statistics
from resitta.training.entropy import entropy

DETECTORS: dict[str, Callable[[], Any]] = {
    "ADWIN": drift.ADWIN,
    "KSWIN": lambda: drift.KSWIN(seed=0),
    "PageHinkley": drift.PageHinkley,
}
STATISTICS = ("brightness", "contrast", "slope", "sharpness")
PATIENCE = 250
"""A border counts as found within so many images."""


def run(bench: Bench, seed: int, reset_on_shift: Any) -> tuple[float, dict[str, list[float]], tuple[int, ...]]:
    """Adapt to the stream; return the error, the candidates for each image, and where domains begin."""
    stream = bench.protocol.stream(bench.sets, seed)
    adapter = adapt(bench.model, "resitta", seed=seed, reset_on_shift=reset_on_shift)
    errors: list[float] = []
    values: dict[str, list[float]] = {name: [] for name in (*STATISTICS, "entropy", "1 - confidence")}
    for batch in stream.batches(bench.protocol.batch_size):
        logits = adapter(batch.images)
        errors += (logits.argmax(dim=1).numpy() != batch.labels).tolist()
        for name, found in zip(STATISTICS, image_statistics(batch.images).T.tolist(), strict=True):
            values[name] += found
        values["entropy"] += entropy(logits.float()).tolist()
        values["1 - confidence"] += (1 - logits.softmax(dim=1).amax(dim=1)).tolist()
    return 100 * float(np.mean(errors)), values, stream.borders


def judge(detector: Any, values: Sequence[float], borders: Sequence[int]) -> str:
    """Feed a detector; return how many borders it finds, its false alarms, and the mean delay."""
    delays: dict[int, int] = {}
    false = 0
    for place, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            last = max(border for border in borders if border <= place)
            if last == 0 or last in delays or place - last > PATIENCE:
                false += 1
            else:
                delays[last] = place - last
    delay = f"{np.mean(list(delays.values())):.0f}" if delays else "-"
    return f"{len(delays)} of {len(borders) - 1} borders, {false} false alarms, {delay} images until found"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=500, help="images per corruption")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = {"none": None, "2": 2.0, "ADWIN": drift.ADWIN(), "KSWIN": drift.KSWIN(alpha=1e-4, seed=0)}
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            spec = open_bench(
                Path(folder), samples=args.samples, seed=seed, retrain=False, bar=lambda _: lambda _done, _total: None
            )
            bench = spec.open(lambda _done, _total: None)
            _, found, borders = run(bench, seed, None)
            for name, values in found.items():
                for kind, make in DETECTORS.items():
                    print(f"seed {seed}, {kind} on {name}: {judge(make(), values, borders)}", flush=True)
            for name, reset_on_shift in settings.items():
                print(
                    f"seed {seed}, reset_on_shift={name}: error {run(bench, seed, reset_on_shift)[0]:.1f} %", flush=True
                )


if __name__ == "__main__":
    main()
