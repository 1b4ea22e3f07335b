"""Errors and cost of all methods on a testbed, in all orders: the records behind "Which method for which stream".

    python benchmarks/matrix.py --bed cifar10-wrn16x1 --per-domain 500
    python benchmarks/matrix.py --bed cifar10-wrn28x10 --device cuda --workers 4 --seconds 500
    python benchmarks/matrix.py --orders ptta iid --methods tide resitta --set tide.label_prior=none
    python benchmarks/matrix.py --methods rotta resitta resitta:anchor=0.1 --course recurring --visits 20
    python benchmarks/matrix.py --out benchmarks/records/matrix --missing --seeds 1 2 3 --best 5

Needs the folder of testbeds, as benchmarks/beds.py does. A record per run goes to --out/BED/ORDER; finished runs are
kept, and --seconds ends a session between two runs. Runs begin in the order of --methods, each in all orders. With
--workers several runs share the device; records say so, and their speeds are then no cost of a method alone:
`--workers 1` measures that.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import torch
from beds import TESTBEDS, add_stream, load_network, make_domain, open_bench, protocol_of, with_testbeds

from resitta.bench.api import by_method, named
from resitta.bench.experiments import TASKS
from resitta.bench.protocol import OrderName
from resitta.bench.record import RunRecord, load, settings_of
from resitta.bench.runner import Bench, Job
from resitta.errors import UnsuitableModel
from resitta.method import Method, create, get_method, needs_of_methods
from resitta.norm.requirements import lack
from resitta.settings import BY_METHOD, parse_pairs

ORDERS = get_args(OrderName)
Turn = tuple[str, Job]
"""An order of the stream, and a run."""


def main() -> None:
    """Run what has no record yet, and print an error and a speed for each run."""
    args, begin, failed = arguments(), time.monotonic(), []
    for (order, job), done in runs(args, begin + args.seconds):
        what = f"{time.monotonic() - begin:5.0f} s  {order}, {job.title}"
        try:
            record = done.result()
        except Exception as error:  # one method that fails must not end the others
            failed.append(f"{what}: {type(error).__name__}: {error}")
            print(failed[-1], flush=True)
            continue
        print(f"{what}: {record.average:.2f} %, {record.images_per_second:,.0f} images/s", flush=True)
    print(f"{len(failed)} runs failed" if failed else "no run failed")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--methods", nargs="+", default=["all"], help="names, or NAME:KEY=VALUE,KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--best", type=int, default=None, help="later seeds only for so many best methods of an order")
    parser.add_argument("--missing", action="store_true", help="not what --out knows by an earlier version of the code")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the methods")
    add_stream(parser)
    parser.add_argument("--workers", type=int, default=1, help="how many runs share the device (default: 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--out", type=Path, default=Path("runs/matrix"))
    parser.add_argument("--cache", type=Path, default=Path("runs/matrix-cache"), help="folder of corrupted images")
    args = parser.parse_args()
    args.methods = [str(name) for name in named(args.methods)]
    args.precision = "exact"
    return args


def runs(args: argparse.Namespace, end: float) -> Iterator[tuple[Turn, "Future[RunRecord]"]]:
    """Start runs in worker processes, few enough ahead that all ends soon after `end`; yield them as they finish."""
    methods = suitable(args)
    first = args.seeds[:1] if args.best else args.seeds
    todo = [(order, Job(method=method, seed=seed)) for method in methods for seed in first for order in args.orders]
    if args.missing:
        todo = [turn for turn in todo if not is_known(turn[1], known(args, turn[0]))]
    undecided = list(args.orders) if args.best else []
    running: dict[Future[RunRecord], Turn] = {}
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        make_images(args, pool)
        while todo or running or undecided:
            begun = {order for order, _ in [*todo, *running.values()]}
            for order in [order for order in undecided if order not in begun]:
                undecided.remove(order)
                todo += [(order, job) for job in best(args, order, methods)]
            while todo and len(running) < args.workers and time.monotonic() < end:
                turn = todo.pop(0)
                running[pool.submit(run, of_order(args, turn[0]), turn[1])] = turn
            if not running and todo:
                print(f"{len(todo)} runs were not begun in the time given")
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done


def make_images(args: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    """Make the corrupted images, each corruption in a worker."""
    any_order = of_order(args, args.orders[0])
    domains = list(dict.fromkeys(protocol_of(any_order).domains()))
    list(pool.map(make_domain, [any_order] * len(domains), domains))


def suitable(args: argparse.Namespace) -> list[Method]:
    """The methods that work on the testbed's network, with the settings of its preset and those asked for."""
    model, needs = load_network(args.bed, args.beds), needs_of_methods()
    names = {entry: entry.partition(":")[0] for entry in args.methods}
    left_out = [entry for entry, name in names.items() if lack(model, needs[get_method(name).name]) is not None]
    if left_out:
        print(f"not on this network: {', '.join(left_out)}")
    shared = by_method(parse_pairs(args.set, "--set", BY_METHOD), list(dict.fromkeys(names.values())))
    dataset = TASKS[TESTBEDS[args.bed].task].dataset
    chosen = [
        create(name, preset=dataset, **shared[name] | own_settings(entry))
        for entry, name in names.items()
        if entry not in left_out
    ]
    if not chosen:
        raise UnsuitableModel("none of these methods works on the network of this testbed; choose others")
    return chosen


def own_settings(entry: str) -> dict[str, Any]:
    """The settings in an entry of --methods.

    >>> own_settings("tent"), own_settings("resitta:anchor=0.1,reset_on_shift=2")
    ({}, {'anchor': 0.1, 'reset_on_shift': 2})
    """
    _, colon, pairs = entry.partition(":")
    return parse_pairs(pairs.split(","), "--methods", "NAME:KEY=VALUE,KEY=VALUE") if colon else {}


def known(args: argparse.Namespace, order: str) -> list[RunRecord]:
    """The records of this protocol that are there, whatever version of the code made them."""
    chosen = of_order(args, order)
    protocol = json.loads(json.dumps(asdict(protocol_of(chosen))))
    records = map(load, sorted(chosen.out.glob("*.json")))
    return [record for record in records if record.identity["protocol"] == protocol]


def is_known(job: Job, records: Iterable[RunRecord]) -> bool:
    """Whether a method with these settings and this seed has a record among these."""
    return any(record.seed == job.seed and usual(record) == described(job.method) for record in records)


def usual(record: RunRecord) -> tuple[str, str]:
    """The method of a record and its settings, without the source data."""
    return record.method, without_source(record.settings)


def described(method: Method) -> tuple[str, str]:
    """The same of a method."""
    return method.name, without_source(settings_of(method))


def without_source(settings: dict[str, Any]) -> str:
    """Settings as text, without the source data that a bench finds by itself.

    >>> without_source({"lr": 0.1, "source": "2,000 images"})
    '{"lr": 0.1}'
    """
    return json.dumps({key: value for key, value in settings.items() if key != "source"}, sort_keys=True)


def best(args: argparse.Namespace, order: str, methods: Iterable[Method]) -> list[Job]:
    """All seeds of the methods with the lowest errors; seed by seed, so that each has two before one has three.

    The first seed is among them: a record of it by an earlier version of the code must not be averaged with others.
    """
    errors = {usual(record): record.average for record in known(args, order) if record.seed == args.seeds[0]}
    ranked = sorted((one for one in methods if described(one) in errors), key=lambda one: errors[described(one)])
    return [Job(method=method, seed=seed) for seed in args.seeds for method in ranked[: args.best]]


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
