"""Errors of the methods on a bed: real test images and a trained source model, corrupted by our own code.

    python benchmarks/beds.py --bed cifar10-wrn16x1 --per-domain 2000
    python benchmarks/beds.py --bed cifar10-wrn28x10 --device cuda --methods all --seeds 1 2 3

Needs the folder of beds: $RESITTA_BEDS, or --beds. Records go to --out, one JSON file per run; finished runs are kept.
"""

import argparse
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from resitta.bench.bench import Bench, Job
from resitta.bench.paper import PAPER
from resitta.bench.presets import METHODS, TASKS
from resitta.bench.protocol import open_domains
from resitta.bench.record import RunRecord
from resitta.models import create as create_model
from resitta.registry import create
from resitta.report.formats import as_text
from resitta.report.tables import error_table

CAFFE = {"mean": tuple(v / 255 for v in (123.68, 116.779, 103.939)), "std": (1 / 255,) * 3}


@dataclass(frozen=True)
class Bed:
    """Images, a source network with its options, and the paper's task that it stands for."""

    images: str
    model: str
    task: str
    options: dict[str, Any] = field(default_factory=dict)


BEDS = {
    "cifar10-wrn28x10": Bed("cifar10-test.zip", "wrn28x10", "cifar10"),
    "cifar10-wrn16x4": Bed("cifar10-test.zip", "wrn16x4", "cifar10"),
    "cifar10-wrn16x1": Bed("cifar10-test.zip", "wrn16x1", "cifar10"),
    "cifar100-resnext29": Bed("cifar100-test.zip", "resnext29", "cifar100"),
    "imagenet-resnet50": Bed(
        "imagenet-val-2k.zip", "resnet50", "imagenet", {"stride_in_1x1": True, "bn_eps": 1e-3, **CAFFE}
    ),
}


def main() -> None:
    """Run what has no record yet and print the table beside the paper's."""
    args = arguments()
    bench = open_bench(args)
    task = TASKS[BEDS[args.bed].task]
    methods = [create(name, preset=task.dataset) for name in args.methods]
    runs: list[RunRecord] = []
    for job in [Job(method=method, seed=seed) for method in methods for seed in args.seeds]:
        runs.append(bench.record(job))
        print(f"{job.title}: {runs[-1].average:.2f} %, {runs[-1].images_per_second:,.0f} images/s", flush=True)
    same_network = BEDS[args.bed].model == task.model
    print(as_text(error_table(runs, paper=PAPER.main(task.dataset) if same_network else None)))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bed", choices=sorted(BEDS), default="cifar10-wrn16x1")
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--methods", nargs="+", default=["source", "bn", "tent", "rotta", "resitta"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="default: runs/BED")
    args = parser.parse_args()
    args.methods = METHODS if args.methods == ["all"] else args.methods
    return args


def open_bench(args: argparse.Namespace) -> Bench:
    """Load the source network and make the corrupted images."""
    bed = BEDS[args.bed]
    torch.backends.cudnn.benchmark = True  # batches all have one size
    model = create_model(bed.model, args.beds / f"{args.bed}.safetensors", **bed.options).to(args.device)
    protocol = replace(TASKS[bed.task].protocol, per_domain=args.per_domain)
    out = args.out or Path("runs") / args.bed
    sets = open_domains(protocol, args.beds / bed.images, cache=out / "corrupted", device=args.device)
    return Bench(protocol, model, sets, out, torch.device(args.device), {"bed": args.bed})


if __name__ == "__main__":
    main()
