"""Errors and cost of all methods on a testbed, in all orders: the records behind "Which method for which stream".

    python benchmarks/matrix.py --bed cifar10-wrn16x1 --per-domain 500
    python benchmarks/matrix.py --bed cifar10-wrn28x10 --device cuda --workers 4 --seconds 500
    python benchmarks/matrix.py --orders ptta iid --methods tide resitta --set tide.label_prior=none

Needs the folder of testbeds, as benchmarks/beds.py does. A record per run goes to --out/BED/ORDER; finished runs are
kept, and --seconds ends a session between two runs. With --workers several runs share the device; records say so, and
their speeds are then no cost of a method alone: `--workers 1` measures that.
"""

import argparse
import copy
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import get_args

import torch
from beds import load_network, make_domain, open_bench, protocol_of, wanted_jobs, with_testbeds

from resitta.bench.api import ALL, named
from resitta.bench.protocol import OrderName
from resitta.bench.record import RunRecord
from resitta.bench.runner import Bench, Job
from resitta.errors import UnsuitableModel
from resitta.method import get_method, needs_of_methods
from resitta.norm.requirements import lack

ORDERS = get_args(OrderName)


def main() -> None:
    """Run what has no record yet, and print an error and a speed for each run."""
    args = arguments()
    end, failed = time.monotonic() + args.seconds, []
    for order, job, done in runs(args, end):
        try:
            record = done.result()
        except Exception as error:  # one method that fails must not end the others
            failed.append(f"{order}, {job.title}: {type(error).__name__}: {error}")
            print(failed[-1], flush=True)
            continue
        speed = f"{record.images_per_second:,.0f} images/s"
        print(f"{order}, {job.title}: {record.average:.2f} %, {speed}", flush=True)
    print(f"{len(failed)} runs failed" if failed else "no run failed")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--methods", nargs="+", default=["all"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the methods")
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--corruptions", nargs="+", default=None, help="which, in this order (default: the paper's)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="how many runs share the device (default: 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--out", type=Path, default=Path("runs/matrix"))
    parser.add_argument("--cache", type=Path, default=Path("runs/matrix-cache"), help="folder of corrupted images")
    args = parser.parse_args()
    args.methods = [str(name) for name in named([ALL])] if args.methods == ["all"] else args.methods
    args.once, args.experiments, args.precision = [], [], "exact"
    return args


def runs(args: argparse.Namespace, end: float) -> Iterator[tuple[str, Job, "Future[RunRecord]"]]:
    """Start runs in worker processes, few enough ahead that all ends soon after `end`; yield them as they finish."""
    todo = [(order, job) for job in suitable(args) for order in args.orders]
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        any_order = of_order(args, args.orders[0])
        domains = protocol_of(any_order).domains()
        list(pool.map(make_domain, [any_order] * len(domains), domains))
        running: dict[Future[RunRecord], tuple[str, Job]] = {}
        while todo or running:
            while todo and len(running) < args.workers and time.monotonic() < end:
                order, job = todo.pop(0)
                running[pool.submit(run, of_order(args, order), job)] = order, job
            if not running:
                print(f"{len(todo)} runs were not begun in the time given")
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield (*running.pop(done), done)


def suitable(args: argparse.Namespace) -> list[Job]:
    """The jobs whose methods work on the testbed's network."""
    model, needs = load_network(args.bed, args.beds), needs_of_methods()
    left_out = [name for name in args.methods if lack(model, needs[get_method(name).name]) is not None]
    if left_out:
        print(f"not on this network: {', '.join(left_out)}")
    chosen = copy.copy(args)
    chosen.methods = [name for name in args.methods if name not in left_out]
    if not chosen.methods:
        raise UnsuitableModel("none of these methods works on the network of this testbed; choose others")
    return wanted_jobs(chosen)


def of_order(args: argparse.Namespace, order: str) -> argparse.Namespace:
    """The arguments of benchmarks/beds.py for one order. ImageNet's temporally correlated order is by label."""
    chosen = copy.copy(args)
    chosen.order, chosen.out, chosen.cache = order, args.out / args.bed / order, args.cache / args.bed
    return chosen


opened: dict[str, Bench] = {}
"""The benches of a worker process, by order; they share images and network."""


def run(args: argparse.Namespace, job: Job) -> RunRecord:
    """Run one job in a worker."""
    torch.set_num_threads(1)
    if args.order not in opened:
        opened[args.order] = open_bench(args)
    return opened[args.order].record(job)


if __name__ == "__main__":
    main()
