"""Errors under shifts that leave a network few classes: darkness, low contrast, glare, noise; one domain each.

    python benchmarks/extreme_shifts.py
    python benchmarks/extreme_shifts.py --noise 0.8 1.6 2.4 1e9 --per-domain 500

Source and BN beside Tide without its label prior, with one or more values of its setting `noise`; 1e9 lets the source
statistics always count as `strength` samples. Needs the folder of testbeds, as benchmarks/beds.py does.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from beds import TESTBEDS, load_network, with_testbeds
from torch import Tensor, nn

from resitta import adapt
from resitta.bench.experiments import TASKS
from resitta.bench.protocol import CLEAN, open_domains
from resitta.data.streams import Stream
from resitta.method import Method, create
from resitta.names import OrderName

Shift = Callable[[Tensor], Tensor]
ORDERS: tuple[OrderName, ...] = ("ptta", "iid")


def noisy(images: Tensor) -> Tensor:
    """Gaussian noise, the same for the same images."""
    generator = torch.Generator().manual_seed(0)
    return (images + 0.4 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


SHIFTS: dict[str, Shift] = {
    "none": lambda images: images,
    "dark": lambda images: 0.15 * images,
    "low contrast": lambda images: 0.45 + 0.06 * (images - 0.5),
    "bright": lambda images: 0.8 + 0.2 * images,
    "inverted": lambda images: 1 - images,
    "grey": lambda images: images.mean(dim=1, keepdim=True).expand_as(images),
    "noise": noisy,
}


def main() -> None:
    """Measure every method under every shift."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--noise", type=float, nargs="+", default=[1.6], help="values of Tide's setting")
    parser.add_argument("--per-domain", type=int, default=1000, help="images of each shift")
    parser.add_argument("--out", type=Path, default=Path("runs/extreme-shifts.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    methods: dict[str, Method] = {"source": create("source"), "bn": create("bn")}
    methods |= {f"tide noise={noise:g}": create("tide", label_prior="none", noise=noise) for noise in args.noise}
    model, found = load_network(args.bed, args.beds), dict[str, dict[str, float]]()
    for order, stream in streams(args).items():
        for name, shift in SHIFTS.items():
            errors = {title: error(model, method, stream, shift) for title, method in methods.items()}
            found[f"{order}, {name}"] = errors
            row = ", ".join(f"{title} {value:.1f}" for title, value in errors.items())
            print(f"{order}, {name}: {row}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"bed": args.bed, "per_domain": args.per_domain, "errors": found}, indent=1) + "\n")


def streams(args: argparse.Namespace) -> dict[str, Stream]:
    """The clean images in each order."""
    task = TASKS[TESTBEDS[args.bed].task]
    clean = replace(task.protocol, per_domain=args.per_domain, corruptions=(CLEAN,))
    sets = open_domains(clean, args.beds / TESTBEDS[args.bed].images, cache=args.out.parent / "extreme-shifts")
    return {order: replace(clean, order=order).stream(sets, 1) for order in ORDERS}


def error(model: nn.Module, method: Method, stream: Stream, shift: Shift) -> float:
    """The error of a method on a shifted stream, in per cent."""
    adapter, wrong = adapt(model, method), 0
    for batch in stream.batches(64, "cpu"):
        wrong += int((adapter(shift(batch.images)).argmax(dim=1).numpy() != batch.labels).sum())
    return 100 * wrong / len(stream)


if __name__ == "__main__":
    main()
