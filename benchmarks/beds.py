"""Errors of the methods on a bed: real test images and a trained source model, corrupted by our own code.

    python benchmarks/beds.py --bed cifar10-wrn16x1 --per-domain 2000
    python benchmarks/beds.py --bed cifar10-wrn28x10 --device cuda --methods all --seeds 1 2 3

Needs the folder of beds: $RESITTA_BEDS, or --beds. Records go to --out, one JSON file per run; finished runs are kept.
"""

import argparse
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import resitta
from resitta.bench.record import RunRecord, environment, load, save
from resitta.bench.run import run
from resitta.models import create
from resitta.report.formats import as_text
from resitta.report.tables import error_table
from resitta.streams.corrupted import corrupted, evenly
from resitta.streams.corruptions import CORRUPTIONS
from resitta.streams.datasets import ImageZip
from resitta.streams.order import dirichlet, label_sorted
from resitta.streams.stream import Stream, continual

PAPER = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]
CAFFE = {"mean": tuple(v / 255 for v in (123.68, 116.779, 103.939)), "std": (1 / 255,) * 3}


@dataclass(frozen=True)
class Bed:
    """Images, a model with its options, the preset of the methods, and whether to sort by label."""

    images: str
    model: str
    preset: str
    options: dict[str, Any] = field(default_factory=dict)
    label_sorted: bool = False


BEDS = {
    "cifar10-wrn28x10": Bed("cifar10-test.zip", "wrn28x10", "cifar10"),
    "cifar10-wrn16x4": Bed("cifar10-test.zip", "wrn16x4", "cifar10"),
    "cifar10-wrn16x1": Bed("cifar10-test.zip", "wrn16x1", "cifar10"),
    "cifar100-resnext29": Bed("cifar100-test.zip", "resnext29", "cifar100"),
    "imagenet-resnet50": Bed(
        "imagenet-val-2k.zip", "resnet50", "imagenet", {"stride_in_1x1": True, "bn_eps": 1e-3, **CAFFE}, True
    ),
}


def main() -> None:
    """Run the methods that have no record yet and print the table."""
    args = arguments()
    torch.backends.cudnn.allow_tf32 = True
    bed = BEDS[args.bed]
    model = create(bed.model, args.beds / f"{args.bed}.safetensors", **bed.options).to(args.device)
    sets = corrupted_sets(bed, args)
    streams = {seed: stream(bed, sets, seed) for seed in args.seeds}
    runs = [record(name, seed, model, streams[seed], args) for name in args.methods for seed in args.seeds]
    print(as_text(error_table(runs)))
    print(json.dumps(environment(args.device)))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bed", choices=sorted(BEDS), default="cifar10-wrn16x1")
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--methods", nargs="+", default=["source", "bn", "tent", "rotta", "resitta"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/beds"))
    args = parser.parse_args()
    args.methods = PAPER if args.methods == ["all"] else args.methods
    torch.set_num_threads(args.threads)
    return args


def corrupted_sets(bed: Bed, args: argparse.Namespace) -> list[Any]:
    """The 15 domains at severity 5, from the folder of corrupted images."""
    images = evenly(ImageZip(args.beds / bed.images), args.per_domain)
    folder = args.out / "corrupted"
    return [corrupted(images, name, 5, folder, device=args.device) for name in CORRUPTIONS]


def stream(bed: Bed, sets: list[Any], seed: int) -> Stream:
    """The PTTA stream of the bed."""
    order = (lambda labels, _: label_sorted(labels)) if bed.label_sorted else dirichlet
    return continual(CORRUPTIONS, sets, order, np.random.default_rng(seed))


def record(name: str, seed: int, model: nn.Module, images: Stream, args: argparse.Namespace) -> RunRecord:
    """Return the record of one run, from its file if it is finished."""
    path = args.out / f"{args.bed}-{args.per_domain or 'all'}-{name}-{seed}.json"
    if not path.exists():
        adapter = resitta.adapt(model, name, preset=BEDS[args.bed].preset, seed=seed)
        result = run(adapter, images)
        save(path, result, environment=environment(args.device), bed=args.bed)
        print(f"{name:8} seed {seed}: {result.average:5.2f} %  {result.images_per_second:7.0f} images/s", flush=True)
    return load(path)


if __name__ == "__main__":
    main()
