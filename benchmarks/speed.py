"""What adaptation costs, as ratios to plain inference measured in the same run on the same machine.

    python benchmarks/speed.py                                   (CPU, WRN-16-1)
    python benchmarks/speed.py --device cuda --bed cifar10-wrn28x10 --latency --out speed.json

Takes the weights and 640 images of a testbed (see benchmarks/beds.py), in batches of 64. Measures
the methods in all their modes, the corruptions (one batch each) and the bank on its own.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bank
import numpy as np
import torch
from beds import TESTBEDS, load_network, with_testbeds
from plain import PlainResiTTA
from torch import Tensor, nn

from resitta import Adapter, adapt
from resitta.bench.api import ALL, named
from resitta.bench.record import environment
from resitta.data.corruptions import CORRUPTIONS, corrupt
from resitta.data.datasets import open_images
from resitta.method import get_method, takes_source

Call = Callable[[Tensor], Any]
BATCH = 64
WARM_UP = 40
"""Batches before the first that counts: CUDA graphs are recorded meanwhile, some of them of rare steps."""
MODES: dict[str, dict[str, Any]] = {
    "resitta, exact": {},
    "resitta, bf16": {"precision": "bf16"},
    "resitta, micro-batches of 8": {"micro_batch": 8},
    "resitta, bank as bytes on the host": {"bank_device": "cpu", "bank_bytes": True},
    "resitta, without CUDA graphs": {"cuda_graphs": False},
    "resitta, label prior": {"label_prior": "temporal"},
    "source, label prior": {"method": "source", "label_prior": "temporal"},
    "rotta, bf16": {"method": "rotta", "precision": "bf16"},
    "tribe, bf16": {"method": "tribe", "precision": "bf16"},
    "roid, bf16": {"method": "roid", "precision": "bf16"},
    "tide, bf16": {"method": "tide", "precision": "bf16"},
    "tide, without label prior": {"method": "tide", "label_prior": "none"},
}
METHODS = tuple(str(name) for name in named([ALL]) if name not in ("cotta", "resitta"))


def main() -> None:
    """Measure, print the table, write the record."""
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = True
    model, images = load_network(args.bed, args.beds, args.device), Images(args)
    parts: dict[str, Callable[[], Any]] = {"rows": lambda: throughput(model, images, args)}
    if args.device != "cpu":
        parts["memory"] = lambda: memory(model, images)
    parts["corruptions"] = lambda: corruptions(model, images, args)
    parts["bank"] = bank_rates
    if args.latency:
        parts["latency"] = lambda: latency(model, images, args.seconds)
        parts["batch_1"] = lambda: batch_1(model, images, args.seconds)
    record: dict[str, Any] = {
        "bed": args.bed,
        "batch": BATCH,
        "environment": environment(torch.device(args.device)),
    }
    print(f"{args.bed}, batches of {BATCH}, {record['environment']['device']}", flush=True)
    for part, measure in parts.items():
        if args.only and part not in args.only:
            continue
        record[part] = measure()
        print_part(part, record[part])
        if args.out:
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: torch's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure each row in each round")
    parser.add_argument("--modes", nargs="*", default=[*MODES, *METHODS])
    parser.add_argument("--only", nargs="+", default=[], help="parts to measure, such as rows (default: all)")
    parser.add_argument("--latency", action="store_true", help="also measure background mode")
    parser.add_argument("--out", type=Path, default=None, help="write a JSON record")
    return parser.parse_args()


class Images:
    """Batches of a testbed, again and again."""

    def __init__(self, args: argparse.Namespace) -> None:
        stored = open_images(args.beds / TESTBEDS[args.bed].images)
        some = np.linspace(0, len(stored) - 1, 10 * BATCH).astype(int)  # sets are often sorted by class
        shuffled = np.random.default_rng(0).permutation(some)
        self.batches = [stored.read(part).to(args.device).float().div_(255) for part in np.split(shuffled, 10)]
        self.is_cuda = self.batches[0].is_cuda
        self.cycle = itertools.cycle(self.batches)

    def batch(self) -> Tensor:
        """The next one."""
        return next(self.cycle)


def throughput(model: nn.Module, images: Images, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Images per second of every row, measured in turns so that all meet the same conditions."""
    calls: dict[str, Call] = {"plain inference": inference(model), "resitta, plain code": PlainResiTTA(model)}
    for name in args.modes:
        calls[name] = adapt(model, **options(name, images))
    for call in calls.values():
        for _ in range(WARM_UP if images.is_cuda else 4):
            call(images.batch())
    rounds: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, call in calls.items():
            rounds.setdefault(name, []).append(seconds_per_call(call, images, args.seconds))
    plain = rounds["plain inference"]
    return {
        name: {
            "images_per_second": BATCH / statistics.median(times),
            "ratio": statistics.median(own / base for own, base in zip(times, plain, strict=True)),
        }
        for name, times in rounds.items()
    }


def options(name: str, images: Images) -> dict[str, Any]:
    """What `adapt` gets for a row: methods that need source data take the images at hand for it."""
    chosen = {"method": "resitta", **MODES.get(name, {"method": name})}
    method = get_method(chosen["method"])
    return {**chosen, "source": torch.cat(images.batches)} if takes_source(method) else chosen


def inference(model: nn.Module) -> Call:
    """A plain forward pass."""

    def call(images: Tensor) -> Any:
        with torch.no_grad():
            return model(images)

    return call


def seconds_per_call(call: Call, images: Images, seconds: float) -> float:
    """The mean time of a call over some seconds."""
    wait(images)
    begin, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - begin < seconds:
        call(images.batch())
        calls += 1
        if calls % 4 == 0:
            wait(images)
    wait(images)
    return (time.perf_counter() - begin) / calls


def wait(images: Images) -> None:
    """Wait for the device."""
    if images.is_cuda:
        torch.cuda.synchronize()


def corruptions(model: nn.Module, images: Images, args: argparse.Namespace) -> dict[str, float]:
    """What it costs to corrupt a batch, as a ratio to plain inference on it."""
    found: dict[str, float] = {}
    for name in CORRUPTIONS:
        call = partial(corrupt, name=name)
        call(images.batch())
        plain = seconds_per_call(inference(model), images, args.seconds / 4)
        found[name] = seconds_per_call(call, images, args.seconds / 4) / plain
    return {**found, "mean of all": statistics.mean(found.values())}


def bank_rates() -> dict[str, float]:
    """Samples per second of the bank, in a process of its own: it works on the host, and on one core."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(bank.rates).result()


def memory(model: nn.Module, images: Images) -> dict[str, float]:
    """The most device memory (MB) that a stream of batches takes beyond the model and the images, per mode.

    In use, and reserved: what the allocator has asked the device for, recorded graphs included.
    """
    makers: dict[str, Callable[[], Call]] = {"plain code": lambda: PlainResiTTA(model)}
    makers["exact"] = lambda: adapt(model, "resitta")
    makers["exact, without CUDA graphs"] = lambda: adapt(model, "resitta", cuda_graphs=False)
    makers["bf16"] = lambda: adapt(model, "resitta", precision="bf16")
    makers["micro-batches of 8"] = lambda: adapt(model, "resitta", micro_batch=8)
    found: dict[str, float] = {}
    for name, make in makers.items():
        found[name], found[f"{name}, reserved"] = peak(make, images)
    owned = sum(p.numel() for p in adapt(model, "resitta").parameters())
    return {**found, "own parameters, share of the model": owned / sum(p.numel() for p in model.parameters())}


def peak(make: Callable[[], Call], images: Images) -> tuple[float, float]:
    """Peak memory of eight calls, in MB: in use, reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    call = make()
    for _ in range(8):
        call(images.batch())
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return (most[0] - before[0]) / 2**20, (most[1] - before[1]) / 2**20


def latency(model: nn.Module, images: Images, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds per call when batches arrive at half the rate that plain inference can take."""
    plain, adapter = inference(model), adapt(model, "resitta", background=True)
    learn_some(adapter, images)
    interval = 2 * seconds_per_call(plain, images, seconds)
    calls: dict[str, Call] = {"plain inference": plain, "resitta, background": adapter}
    found: dict[str, dict[str, float]] = {}
    for name, call in calls.items():
        for _ in range(20):
            call(images.batch())
        before = adapter.stats.updates
        times = arrivals(call, images, interval, count=400)
        found[name] = {"median": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}
    adapter.sync()
    found["resitta, background"]["updates"] = adapter.stats.updates - before
    return found


def learn_some(adapter: Adapter, images: Images) -> None:
    """Let libraries choose their kernels, and the first updates find their memory, before the clock runs."""
    while adapter.stats.updates < 4:
        adapter(images.batch())
        adapter.sync()


def arrivals(call: Call, images: Images, interval: float, count: int) -> list[float]:
    """The sorted times, in ms, from calling to having the answer, of calls that come at a steady rate."""
    times, due = [], time.perf_counter()
    for _ in range(count):
        due += interval
        time.sleep(max(0.0, due - time.perf_counter()))
        begin = time.perf_counter()
        call(images.batch()).argmax(1).cpu()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)


def batch_1(model: nn.Module, images: Images, seconds: float) -> dict[str, float]:
    """Images per second, one at a time."""
    images.batches = [image[None] for batch in images.batches for image in batch]
    images.cycle = itertools.cycle(images.batches)
    adapter = adapt(model, "resitta", background=True)
    learn_some(adapter, images)
    calls: dict[str, Call] = {"plain inference": inference(model), "resitta, background": adapter}
    for call in calls.values():
        for _ in range(100):
            call(images.batch())
    before = adapter.stats.updates
    found = {name: 1 / seconds_per_call(call, images, 4 * seconds) for name, call in calls.items()}
    adapter.sync()
    return {**found, "updates": adapter.stats.updates - before}


def print_part(part: str, found: dict[str, Any]) -> None:
    """Say it in columns."""
    for name, value in found.items():
        if part == "rows":
            text = f"{value['images_per_second']:10,.0f} images/s   {value['ratio']:6.2f} x plain inference"
        elif part == "latency":
            text = "  ".join(f"{key} {number:.2f}" for key, number in value.items())
        else:
            text = f"{value:10,.3f}"
        print(f"  {part:8} {name:36} {text}", flush=True)


if __name__ == "__main__":
    main()
