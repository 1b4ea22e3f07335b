"""Errors of the methods on a testbed: real test images and a trained source model, corrupted by our own code.

    python benchmarks/beds.py --bed cifar10-wrn16x1 --per-domain 2000
    python benchmarks/beds.py --bed cifar10-wrn28x10 --device cuda --methods all --seeds 1 2 3
    python benchmarks/beds.py --bed cifar100-resnext29 --device cuda --methods resitta --experiments ablation eta
    python benchmarks/beds.py --methods resitta --set reset_on_shift=2 --out runs/reset_on_shift
    python benchmarks/beds.py --bed imagenet-resnet50 --device cuda --methods all --batch-size 26 --out runs/imagenet-26

Needs the folder of testbeds: $RESITTA_BEDS, or --beds. Records go to --out, one JSON file per run; finished runs are
kept. With --workers several runs share the device, each in a process of its own; the records say so.
"""

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from resitta.bench.api import ALL, by_method, named
from resitta.bench.experiments import EXPERIMENTS, METHODS, TABLES, TASKS, experiment
from resitta.bench.paper import PAPER
from resitta.bench.protocol import Course, Domain, OrderName, Protocol, open_domains
from resitta.bench.record import RunRecord
from resitta.bench.runner import Bench, Job
from resitta.bench.source_data import SourceData
from resitta.data.datasets import ImageSet
from resitta.method import create
from resitta.models import create as create_model
from resitta.report.formats import as_text
from resitta.report.table import error_table
from resitta.settings import BY_METHOD, parse_pairs

FOLDER = Path(os.environ.get("RESITTA_BEDS", "../shared/beds"))
CAFFE = {"mean": tuple(v / 255 for v in (123.68, 116.779, 103.939)), "std": (1 / 255,) * 3}


@dataclass(frozen=True)
class Testbed:
    """Images, a source network with its options, and the paper's task that it stands for."""

    images: str
    model: str
    task: str
    options: dict[str, Any] = field(default_factory=dict)


TESTBEDS = {
    "cifar10-wrn28x10": Testbed("cifar10-test.zip", "wrn28x10", "cifar10"),
    "cifar10-wrn16x4": Testbed("cifar10-test.zip", "wrn16x4", "cifar10"),
    "cifar10-wrn16x1": Testbed("cifar10-test.zip", "wrn16x1", "cifar10"),
    "cifar10-resnet26gn": Testbed("cifar10-test.zip", "resnet26gn", "cifar10"),
    "cifar10-vit": Testbed("cifar10-test.zip", "vit_cifar", "cifar10"),
    "cifar100-resnext29": Testbed("cifar100-test.zip", "resnext29", "cifar100"),
    "imagenet-resnet50": Testbed(
        "imagenet-val-2k.zip", "resnet50", "imagenet", {"stride_in_1x1": True, "bn_eps": 1e-3, **CAFFE}
    ),
}


def with_testbeds(description: str | None, *, choose: bool = True) -> argparse.ArgumentParser:
    """A parser with --beds, the folder of testbeds, and --bed, the one to use."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", type=Path, default=FOLDER)
    if choose:
        parser.add_argument("--bed", choices=sorted(TESTBEDS), default="cifar10-wrn16x1")
    return parser


def load_network(name: str, folder: Path, device: str = "cpu") -> nn.Module:
    """The source network of a testbed, in eval mode."""
    testbed = TESTBEDS[name]
    return create_model(testbed.model, folder / f"{name}.safetensors", **testbed.options).to(device)


def main() -> None:
    """Run what has no record yet and print the table beside the paper's."""
    args = arguments()
    testbed, task = TESTBEDS[args.bed], TASKS[TESTBEDS[args.bed].task]
    runs = []
    for job, record in run_all(args, wanted_jobs(args)):
        runs.append(record)
        print(f"{job.title}: {record.average:.2f} %, {record.images_per_second:,.0f} images/s", flush=True)
    order = named([ALL])
    runs.sort(key=lambda record: (order.index(record.method), str(record.settings), record.seed))
    comparable = testbed.model == task.model and not args.corruptions and not args.order and args.course == "once"
    print(as_text(error_table(runs, paper=PAPER.main(task.dataset) if comparable else None)))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--methods", nargs="*", default=["source", "bn", "tent", "rotta", "resitta"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--once", nargs="*", default=[], help="methods to run with the first seed only")
    kinds = sorted(set(EXPERIMENTS) - set(TABLES))
    parser.add_argument("--experiments", nargs="*", choices=kinds, default=[], help="the ablation and sweeps to run")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the methods")
    parser.add_argument("--precision", choices=("exact", "bf16"), default="exact")
    parser.add_argument("--order", choices=get_args(OrderName), default=None, help="of images (default: the task's)")
    add_stream(parser)
    parser.add_argument("--workers", type=int, default=1, help="how many runs share the device (default: 1)")
    parser.add_argument("--out", type=Path, default=None, help="default: runs/BED")
    parser.add_argument("--cache", type=Path, default=None, help="folder of corrupted images (default: that of --out)")
    args = parser.parse_args()
    args.methods = METHODS if args.methods == ["all"] else args.methods
    args.out = args.out or Path("runs") / args.bed
    args.cache = args.cache or args.out
    return args


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Add what defines a stream beside its order, and the device."""
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--corruptions", nargs="+", default=None, help="which, in this order (default: the paper's)")
    parser.add_argument("--course", choices=get_args(Course), default="once", help="of the corruptions")
    parser.add_argument("--visits", type=int, default=1, help="how often recurring corruptions come")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--corruption-seed", type=int, default=0, help="another draw of the corrupted images")
    parser.add_argument("--device", default="cpu")


def wanted_jobs(args: argparse.Namespace) -> list[Job]:
    """Methods with every seed, methods with one, experiments with every seed; what is asked for twice runs once."""
    dataset = TASKS[TESTBEDS[args.bed].task].dataset
    seeds = [(name, args.seeds) for name in args.methods] + [(name, args.seeds[:1]) for name in args.once]
    settings = by_method(parse_pairs(args.set, "--set", BY_METHOD), [*args.methods, *args.once])
    made = {name: create(name, preset=dataset, **settings[name]) for name in settings}
    jobs = [Job(method=made[name], seed=seed) for name, some in seeds for seed in some]
    for name in args.experiments:
        jobs += experiment(name, dataset).jobs(args.seeds)
    return list(dict.fromkeys(jobs))


def run_all(args: argparse.Namespace, jobs: list[Job]) -> Iterator[tuple[Job, RunRecord]]:
    """Run jobs in this process or in several, and yield the records as they come."""
    if args.workers == 1:
        bench = open_bench(args)
        yield from ((job, bench.record(job)) for job in jobs)
        return
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        domains = list(dict.fromkeys(protocol_of(args).domains()))
        list(pool.map(make_domain, [args] * len(domains), domains))
        running = {pool.submit(run_in_worker, args, job): job for job in jobs}
        for done in as_completed(running):
            yield running[done], done.result()


def protocol_of(args: argparse.Namespace) -> Protocol:
    """The protocol of the testbed's task, with the images, corruptions, order and batches asked for."""
    protocol = TASKS[TESTBEDS[args.bed].task].protocol
    return replace(
        protocol,
        corruptions=args.corruptions or protocol.corruptions,
        per_domain=args.per_domain,
        order=args.order or protocol.order,
        course=args.course,
        visits=args.visits,
        batch_size=args.batch_size,
        corruption_seed=args.corruption_seed,
    )


def open_bench(args: argparse.Namespace) -> Bench:
    """Load the source network and make the corrupted images."""
    torch.backends.cudnn.benchmark = True  # batches all have one size
    return Bench(
        protocol=protocol_of(args),
        model=load_network(args.bed, args.beds, args.device),
        sets=open_sets(args, protocol_of(args)),
        out=args.out,
        device=torch.device(args.device),
        about={"bed": args.bed},
        options={} if args.precision == "exact" else {"precision": args.precision},
        circumstances={"processes_on_the_device": args.workers},
        source=SourceData(
            data=args.beds / TESTBEDS[args.bed].images, cache=args.cache / "source", size=protocol_of(args).batch_size
        ),
    )


def open_sets(args: argparse.Namespace, protocol: Protocol) -> dict[Domain, ImageSet]:
    """Open the corrupted images of a protocol, or make them."""
    images = args.beds / TESTBEDS[args.bed].images
    return open_domains(protocol, images, cache=args.cache / "corrupted", device=args.device)


opened: list[Bench] = []
"""The bench of a worker process."""


def make_domain(args: argparse.Namespace, domain: Domain) -> None:
    """Make the images of one corruption, in a worker."""
    torch.set_num_threads(1)
    open_sets(args, replace(protocol_of(args), corruptions=(domain[0],)))


def run_in_worker(args: argparse.Namespace, job: Job) -> RunRecord:
    """Run one job in a worker, which opens the bench for its first."""
    if not opened:
        opened.append(open_bench(args))
    return opened[0].record(job)


if __name__ == "__main__":
    main()
