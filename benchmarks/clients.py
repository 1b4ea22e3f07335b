"""What one hostile client costs the others: errors of honest clients of a service, with and without it.

    python benchmarks/clients.py --per-domain 600                 # about five minutes on one core
    python benchmarks/clients.py --attacks noise black --per-domain 600 --record FILE
    python benchmarks/clients.py --attacks adversarial --clients 1 --rate 2 --per-domain 600     # two clients
    python benchmarks/clients.py --attacks "one corruption" --clients 1 --per-domain 600         # one sends much more

Honest clients send streams of their own, temporally correlated, through a few corruptions; a hostile one sends `rate`
times as many images as one of them. Predictions and learning are the service's own code (the queue, the shares and
screens of clients, the guard, anchor=0.1 as `resitta serve` has it), without HTTP and threads, so that a run can be
repeated. Who loses and regains its voice is recorded, with the number of images that it had sent by then. "as one
client" switches off what tells clients apart: all images come under one name.
Needs the folder of beds: $RESITTA_BEDS, or --beds. Finished runs are kept in the record and not run again.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resitta.adapter import adapt
from resitta.bench.protocol import Protocol, open_domains
from resitta.data.datasets import ImageSet
from resitta.models import create as create_model
from resitta.serve.events import Events
from resitta.serve.learning import guard_counts
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer

RECORD = Path(__file__).parent / "records" / "clients.json"
CORRUPTIONS = ("motion_blur", "fog", "pixelate", "snow")
POST = 8
"""Images that a client sends at once."""

HOSTILE = "hostile"
Sent = tuple[Tensor, np.ndarray, np.ndarray]
"""Images, their labels, and the number of their corruption."""


@dataclass(frozen=True)
class Ground:
    """The bed cifar10-wrn16x1 and the streams made from it."""

    args: argparse.Namespace
    model: nn.Module
    protocol: Protocol
    sets: dict[Any, ImageSet]

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Ground":
        """Open the bed."""
        protocol = Protocol(corruptions=tuple(args.corruptions), per_domain=args.per_domain)
        sets = open_domains(protocol, args.beds / "cifar10-test.zip", cache=args.cache)
        return cls(args, create_model("wrn16x1", args.beds / "cifar10-wrn16x1.safetensors").eval(), protocol, sets)

    def honest(self, client: int, seed: int) -> Iterator[Sent]:
        """What one honest client sends: its part of every corruption, in an order of its own."""
        stream = self.protocol.stream(self.sets, seed * 100 + client)
        own = np.flatnonzero(stream.index % self.args.clients == client)
        for start in range(0, len(own), POST):
            domain, index = (values[own[start : start + POST]] for values in (stream.domain, stream.index))
            images, labels = stream.read(domain, index)
            yield images.float() / 255, labels, domain

    def known(self, count: int) -> Tensor:
        """Images that an attack starts from: those of the last corruption."""
        images = list(self.sets.values())[-1]
        return images.read(np.random.default_rng(5).permutation(len(images))[:count]).float() / 255


# The attacks: from the ground and the number of images to all images that the hostile client sends.


def noise(_: Ground, count: int) -> Tensor:
    """Every pixel is drawn at random."""
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def black(_: Ground, count: int) -> Tensor:
    """The camera is covered."""
    return torch.zeros(count, 3, 32, 32)


def adversarial(ground: Ground, count: int, bound: float = 8 / 255, steps: int = 10) -> Tensor:
    """Images moved by at most 8/255 per pixel so that the source model is sure of a wrong class (PGD)."""
    generator = torch.Generator().manual_seed(4)
    parts = [climb(ground.model, part, bound, steps, generator) for part in torch.split(ground.known(1000), 100)]
    return repeated(torch.cat(parts), count)


def brightening(ground: Ground, count: int) -> Tensor:
    """Images that become brighter until they are white."""
    light = torch.linspace(0, 1.2, count).clamp(max=1).view(-1, 1, 1, 1)
    return (repeated(ground.known(1000), count) + light).clamp(max=1)


def foreign(ground: Ground, count: int) -> Tensor:
    """Not hostile at all: ordinary images of one corruption only."""
    return repeated(ground.known(1000), count)


ATTACKS: dict[str, Callable[[Ground, int], Tensor]] = {
    "noise": noise,
    "black": black,
    "adversarial": adversarial,
    "brightening": brightening,
    "one corruption": foreign,
}


def climb(model: nn.Module, images: Tensor, bound: float, steps: int, generator: torch.Generator) -> Tensor:
    """Move images away from the class that the model gives them, by signs of the gradient, within a bound."""
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    moved = (images + bound * (2 * torch.rand(images.shape, generator=generator) - 1)).clamp(0, 1)
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(moved), labels), moved)
        away = moved.detach() + bound / 4 * slope.sign()
        moved = (images + (away - images).clamp(-bound, bound)).clamp(0, 1)
    return moved


def repeated(images: Tensor, count: int) -> Tensor:
    """As many images as asked for, again and again the same ones."""
    return images[torch.arange(count) % len(images)]


# The service.


class Service:
    """The writer of a service, without its thread: what is sent is predicted at once, and then learned from."""

    def __init__(self, ground: Ground, folder: Path, *, apart: bool, seed: int) -> None:
        adapter = adapt(ground.model, "resitta", guard=True, anchor=0.1, seed=seed)
        self.apart = apart
        self.sent: Counter[str] = Counter()
        self.changes: list[str] = []
        self.writer = Writer(adapter, StateFolder(folder, keep=1), Limits(save_every=1e9), Events())

    def predict(self, images: Tensor, client: str) -> Tensor:
        """Answer a request; its images wait to be learned from."""
        self.sent[client] += len(images)
        return self.writer.predict(images, [client if self.apart else ""] * len(images))[0]

    def learn(self) -> None:
        """Learn from what waits, as far as it fills batches."""
        while self.writer.queue.has_batch:
            before = self.writer.screening.muted
            self.writer.thread.step()
            self._note(before, self.writer.screening.muted)

    def _note(self, before: frozenset[str], now: frozenset[str]) -> None:
        for client in sorted(before ^ now):
            what = "harmful" if client in self.writer.screening.harmful else "unknown"
            text = f"muted ({what})" if client in now else "heard again"
            self.changes.append(
                f"{client}: {text} after {self.sent[client]} images, {sum(self.sent.values())} of all clients"
            )


def run(ground: Ground, attack: str | None, apart: bool, seed: int) -> dict[str, Any]:
    """Let all clients send in turn; return the errors of the honest ones, in per cent, and what became of images."""
    clients = [ground.honest(client, seed) for client in range(ground.args.clients)]
    rounds = -(-ground.args.per_domain * len(ground.sets) // (ground.args.clients * POST))
    each = round(ground.args.rate * POST)
    bad = torch.split(ATTACKS[attack](ground, rounds * each), each) if attack else ()
    wrong, total = np.zeros(len(ground.sets)), np.zeros(len(ground.sets))
    with tempfile.TemporaryDirectory() as folder:
        service = Service(ground, Path(folder), apart=apart, seed=seed)
        for turn in range(rounds):
            if attack:
                service.predict(bad[turn], HOSTILE)
            for number, client in enumerate(clients):
                images, labels, domain = next(client, (torch.empty(0, 3, 32, 32), np.zeros(0), np.zeros(0, int)))
                if len(images):
                    found = service.predict(images, f"honest {number}").argmax(dim=1).numpy()
                    np.add.at(wrong, domain, found != labels)
                    np.add.at(total, domain, 1)
                service.learn()
    return {"error": round(float(np.mean(100 * wrong / total)), 2), "muted": service.changes, **fate(service.writer)}


def fate(writer: Writer) -> dict[str, Any]:
    """What the service has done."""
    counters, stats = writer.queue.counters, writer.adapter.stats
    return {
        "updates": stats.updates,
        "learned": counters.learned,
        "screened": counters.screened,
        "unknown to the guard": guard_counts(writer.adapter)["unknown"],
        "events": [event.text for event in writer.events.newest()][:5],
    }


def source_error(ground: Ground) -> dict[str, Any]:
    """The error of the model that does not adapt."""
    errors = []
    with torch.inference_mode():
        for images in ground.sets.values():
            parts = np.array_split(np.arange(len(images)), 10)
            found = torch.cat([ground.model(images.read(part).float() / 255).argmax(dim=1) for part in parts])
            errors.append(100 * float((found.numpy() != images.labels).mean()))
    return {"error": round(float(np.mean(errors)), 2)}


def main() -> None:
    """Run what the record lacks, and print the table."""
    args = arguments()
    if not (args.beds / "cifar10-wrn16x1.safetensors").exists():
        sys.exit(f"no beds in {args.beds}; set RESITTA_BEDS, or give --beds FOLDER")
    torch.set_num_threads(1)
    ground, record = Ground.of(args), json.loads(args.record.read_text()) if args.record.exists() else {}
    size = f"{args.clients} clients, rate {args.rate:g}, {args.per_domain} per corruption"
    jobs: dict[str, Callable[[], dict[str, Any]]] = {f"source, {size}": partial(source_error, ground)}
    for attack in (None, *args.attacks):
        for apart in (False, True):
            for seed in args.seeds:
                name = f"{attack or 'no attack'}, {'apart' if apart else 'as one client'}, seed {seed}, {size}"
                jobs[name] = partial(run, ground, attack, apart, seed)
    for name, job in jobs.items():
        if name not in record:
            record[name] = job()
            args.record.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {record[name]}", flush=True)
    print(table(record, args, size))


def table(record: dict[str, Any], args: argparse.Namespace, size: str) -> str:
    """The honest clients' errors, means over the seeds."""
    lines = [f"source: {record[f'source, {size}']['error']:.1f}", f"{'error, %':16}{'as one client':>14}{'apart':>8}"]
    for attack in ("no attack", *args.attacks):
        line = f"{attack:16}"
        for way, width in (("as one client", 14), ("apart", 8)):
            errors = [record[f"{attack}, {way}, seed {seed}, {size}"]["error"] for seed in args.seeds]
            line += f"{np.mean(errors):{width}.1f}"
        lines.append(line)
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--attacks", nargs="*", choices=sorted(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--clients", type=int, default=4, help="honest ones")
    parser.add_argument("--rate", type=float, default=6.0, help="images of the hostile client for one of another's")
    parser.add_argument("--corruptions", nargs="+", default=CORRUPTIONS)
    parser.add_argument("--per-domain", type=int, default=1000, help="images of each corruption, of all clients")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--cache", type=Path, default=Path("runs/clients/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
