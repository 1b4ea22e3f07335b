"""What the label prior makes of recorded logits: error, NLL, calibration and time, without and with it.

    python benchmarks/label_prior.py --per-domain 1000
    python benchmarks/label_prior.py --bed cifar100-resnext29 --device cuda --orders ptta iid --methods source

    python benchmarks/label_prior.py --speed
    python benchmarks/label_prior.py --speed --device cuda

Logits of a method on a stream are recorded once, in --out, and corrected offline: the same as `label_prior="temporal"`
without feedback. Needs the folder of
testbeds, as benchmarks/beds.py does. --speed measures the time of artificial logits instead, and needs nothing.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from beds import TESTBEDS, load_network, with_testbeds
from torch import Tensor

from resitta import adapt
from resitta.bench.experiments import TASKS
from resitta.bench.loop import Metrics
from resitta.bench.protocol import OrderName, open_domains
from resitta.training.label_prior import Lookahead, TemporalPrior

BATCH = 64


def main() -> None:
    """Print a row for each stream and method."""
    args = arguments()
    if args.speed:
        speed(torch.device(args.device))
        return
    print("logits                    without: error    NLL    ECE   with: error    NLL    ECE   lookahead   us/image")
    for name, logits, labels in recordings(args):
        plain, corrected, took = measured(logits, labels), *with_prior(logits, labels, "none")
        ahead, _ = with_prior(logits, labels, "batch")
        cells = "".join(f"{value:7.2f}" for value in plain) + "   " + "".join(f"{value:7.2f}" for value in corrected)
        print(f"{name:32}{cells} {ahead[0]:11.2f} {took:10.1f}", flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--orders", nargs="+", choices=get_args(OrderName), default=["ptta", "slots", "iid", "mixed"])
    parser.add_argument("--methods", nargs="+", default=["source", "resitta"])
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--speed", action="store_true", help="only measure the time of artificial logits")
    parser.add_argument("--out", type=Path, default=Path("runs/label-prior"))
    return parser.parse_args()


def recordings(args: argparse.Namespace) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The name, logits and labels of each stream under each method."""
    task = TASKS[TESTBEDS[args.bed].task]
    protocol = replace(task.protocol, per_domain=args.per_domain)
    model, images = load_network(args.bed, args.beds, args.device), args.beds / TESTBEDS[args.bed].images
    sets = open_domains(protocol, images, cache=args.out / args.bed / "corrupted", device=args.device)
    for order in args.orders:
        stream = replace(protocol, order=order).stream(sets, args.seed)
        for method in args.methods:
            path = args.out / args.bed / f"{method}-{order}-{args.per_domain}-{args.seed}.pt"
            if not path.exists():
                settings: dict[str, Any] = {"reset_on_shift": 2.0} if method == "resitta" else {}
                adapter = adapt(model, method, preset=task.dataset, seed=args.seed, **settings)
                batches = list(stream.batches(BATCH, args.device))
                logits = torch.cat([adapter(batch.images).cpu() for batch in batches])
                labels = torch.cat([torch.from_numpy(batch.labels) for batch in batches])
                torch.save({"logits": logits, "labels": labels}, path)
            kept = torch.load(path, weights_only=True)
            yield f"{method}, {order}", kept["logits"], kept["labels"]


def measured(logits: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Error in per cent, NLL in nats, and expected calibration error in per cent."""
    metrics = Metrics()
    metrics.add(logits, labels.numpy(), torch.zeros(len(labels), dtype=torch.long).numpy())
    return 100 * float((~metrics.correct).mean()), metrics.nll(), 100 * metrics.ece()


def with_prior(logits: Tensor, labels: Tensor, lookahead: Lookahead) -> tuple[tuple[float, float, float], float]:
    """The same of corrected logits, and the microseconds of processor time that an image took."""
    prior, begin = TemporalPrior(lookahead=lookahead), time.process_time()
    corrected = torch.cat([prior(batch) for batch in torch.split(logits, BATCH)])
    return measured(corrected, labels), 1e6 * (time.process_time() - begin) / len(labels)


def speed(device: torch.device) -> None:
    """Print the time of a sample in microseconds; on a CUDA device that of a batch of 64, and compare with the host."""
    torch.set_num_threads(1)
    on_host = device.type == "cpu"
    print("classes  batch  us/sample" if on_host else "classes  us/batch: host  device   greatest difference")
    for classes, samples in ((10, 8000), (100, 4000), (1000, 2000)):
        logits = artificial(samples, classes)
        if not on_host:
            print(f"{classes:7} {on_device(logits, device)}", flush=True)
            continue
        for batch in (1, 16, 64, 200):
            used = logits[: samples // 4 if batch == 1 else samples]
            print(f"{classes:7} {batch:6} {usual_time(used, batch):10.1f}", flush=True)


def artificial(samples: int, classes: int, length: int = 20) -> Tensor:
    """Logits of classes that come in runs."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (-(-samples // length),), generator=generator).repeat_interleave(length)[:samples]
    noise = torch.randn((samples, classes), generator=generator)
    return 2 * (noise + 3 * torch.nn.functional.one_hot(labels, classes))


def usual_time(logits: Tensor, batch: int) -> float:
    """The microseconds of processor time that a sample takes: the first decile of means over 200 samples."""
    prior, times = TemporalPrior(), []
    for part in torch.split(logits, batch):
        begin = time.thread_time()
        prior(part)
        times.append(1e6 * (time.thread_time() - begin) / len(part))
    together = max(1, 200 // batch)
    return float(torch.tensor(times).unfold(0, together, 1).mean(1).quantile(0.1))


def on_device(logits: Tensor, device: torch.device) -> str:
    """The microseconds that a batch takes the host and the device, and by how much answers differ from the host's."""
    prior, other, difference = TemporalPrior(), TemporalPrior(), 0.0
    batches = torch.split(logits.to(device), BATCH)
    for part in batches:
        difference = max(difference, float((prior(part).cpu() - other(part.cpu())).abs().max()))
    torch.cuda.synchronize(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # the host runs ahead of the device
    begin.record()
    start = time.perf_counter()
    for part in batches[:30]:
        prior(part)
    host = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize(device)
    return f"{1e6 * host / 30:14.0f} {1e3 * begin.elapsed_time(end) / 30:7.0f} {difference:21.1e}"


if __name__ == "__main__":
    main()
