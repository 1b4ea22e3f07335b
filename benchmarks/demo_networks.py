"""Whether the result of `resitta demo digits` hangs on its one network: other training seeds and streams.

    python benchmarks/demo_networks.py --seeds 2 3 4 5 6 7

Seed 0 is the demo's own network. Prints the average errors of Source, RoTTA and ResiTTA for each.
"""

import argparse

import numpy as np
import torch

import resitta
from resitta.bench.loop import run_stream
from resitta.bench.protocol import Protocol
from resitta.data.corruptions import CORRUPTIONS, corrupt
from resitta.data.datasets import ArrayImages
from resitta.data.streams import Stream
from resitta.demo.digits import DIGITS, Digits, load_digits, train, unseen_digits

METHODS = ("source", "rotta", "resitta")


def main() -> None:
    """Train, stream and compare, one network after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4, 5, 6, 7])
    parser.add_argument("--samples", type=int, default=DIGITS.samples)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [averages(seed, args.samples) for seed in args.seeds]
    gains = [rotta - ours for _, rotta, ours in rows]
    print(
        f"ResiTTA's gain over RoTTA: {np.mean(gains):+.2f} points on average, better on {sum(g > 0 for g in gains)}",
        end="",
    )
    print(f" of {len(gains)} networks")


def averages(seed: int, samples: int) -> list[float]:
    """The average errors of the methods with one network, on a stream of its own."""
    digits = load_digits()
    network = train(digits, seed=seed)
    stream = corrupted_stream(digits, samples, seed + 1)
    found = [run_stream(resitta.adapt(network, name, seed=seed + 1), stream).average for name in METHODS]
    print(f"network {seed}: " + "  ".join(f"{n} {e:.2f}" for n, e in zip(METHODS, found, strict=True)), flush=True)
    return found


def corrupted_stream(digits: Digits, samples: int, seed: int) -> Stream:
    """The stream of `resitta demo digits`, in memory."""
    clean = unseen_digits(digits, samples, seed)
    pixels = clean.read(range(samples))
    sets = {(name, 5): ArrayImages(corrupt(pixels, name, 5, seed=seed), clean.labels) for name in CORRUPTIONS}
    return Protocol().stream(dict(sets), seed)


if __name__ == "__main__":
    main()
