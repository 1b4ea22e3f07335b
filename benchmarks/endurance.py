"""A million samples through one adapter: does memory grow, does it slow down, does it forget?

    python benchmarks/endurance.py --part million      # a small network on tiny images
    python benchmarks/endurance.py --part recurring    # 20 visits of the 15 corruptions; needs the testbeds

`million` prints resident memory and throughput in ten parts of the stream; `recurring` prints the error of each visit,
and the same command goes on after the last whole visit if it was stopped.
"""

import argparse
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beds import load_network, with_testbeds
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.adapter import Adapter, adapt
from resitta.bench.protocol import Protocol, open_domains

RECORD = Path(__file__).parent / "records" / "endurance.json"
WARM = 10_000
Floats = NDArray[np.float64]


class TinyWorld:
    """Ten patterns of 8×8 pixels, seen through noise, under a light that comes and goes."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        self.noise = noise
        self.generator = torch.Generator().manual_seed(seed)
        self.patterns = self._coarse(10)

    def images(self, n: int, step: int = 0) -> tuple[Tensor, Tensor]:
        """Images with their labels."""
        labels = torch.randint(10, (n,), generator=self.generator)
        light = 0.7 + 0.3 * math.cos(step / 500)
        return self.patterns[labels].lerp(self._coarse(n), self.noise) * light, labels

    def _coarse(self, n: int) -> Tensor:
        small = torch.rand((n, 3, 4, 4), generator=self.generator)
        return small.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)

    def network(self) -> nn.Module:
        """A small network that knows the patterns in full light."""
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
        network = nn.Sequential(*layers)
        adam = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(300):
            images, labels = self.images(64)
            adam.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            adam.step()
        return network.eval()


def resident_mb() -> float:
    """The memory the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def million(samples: int, noise: float, anchor: float, batch_size: int = 200) -> dict[str, Any]:
    """Feed a guarded adapter that somebody listens to; look at it after 10,000 samples and after each tenth."""
    world = TinyWorld(noise)
    adapter = adapt(world.network(), "resitta", anchor=anchor, guard=True)
    heard: list[int] = [0]
    adapter.listen(lambda _: heard.__setitem__(0, heard[0] + 1))
    feed(adapter, world, WARM, batch_size, start=0)
    memory, parts, part = [resident_mb()], [], (samples - WARM) // 10
    for tenth in range(10):
        parts.append(feed(adapter, world, part, batch_size, start=WARM + tenth * part))
        memory.append(resident_mb())
        speed, error = parts[-1]
        print(f"{adapter.samples:>9,} {memory[-1]:7.1f} MB {speed:8,.0f} images/s {error:.2f} % error", flush=True)
    growth = max(abs(m / memory[0] - 1) for m in memory)
    assert adapter.guard is not None
    return {
        "samples": adapter.samples,
        "memory_mb": [round(m, 2) for m in memory],
        "largest_change_of_memory": round(growth, 4),
        "images_per_second": [round(speed) for speed, _ in parts],
        "errors": [round(error, 2) for _, error in parts],
        "updates_heard": heard[0],
        "guard": {reason: n for reason, n in adapter.guard.counts.items() if n},
    }


def feed(adapter: Adapter, world: TinyWorld, samples: int, batch_size: int, start: int) -> tuple[float, float]:
    """Call the adapter on so many samples; return its images per second and its error in per cent."""
    seconds, wrong = 0.0, 0
    for step in range(start // batch_size, (start + samples) // batch_size):
        images, labels = world.images(batch_size, step)
        begin = time.process_time()  # the machine may be busy with other things
        logits = adapter(images)
        seconds += time.process_time() - begin
        wrong += int((logits.argmax(dim=1) != labels).sum())
    return samples / seconds, 100 * wrong / samples


def recurring(args: argparse.Namespace, name: str) -> None:
    """Visit the 15 corruptions again and again without a reset; keep the errors and the adapter after each visit."""
    protocol = Protocol(course="recurring", visits=args.visits, per_domain=args.per_domain)
    sets = open_domains(protocol, args.beds / "cifar10-test.zip", cache=args.cache, device=args.device)
    model = load_network("cifar10-wrn16x1", args.beds, args.device)
    adapter = adapt(
        model, "resitta", seed=args.seed, guard=True, anchor=args.anchor, reset_on_shift=args.reset_on_shift
    )
    assert adapter.guard is not None
    stream = protocol.stream(sets, args.seed)
    counts = np.zeros((2, args.visits, len(protocol.corruptions)))  # samples, and how many of them were wrong
    state, counted = (args.cache.parent / f"{name}{suffix}" for suffix in (".safetensors", ".npy"))
    if state.exists() and counted.exists():
        adapter.restore(state)
        counts = np.load(counted)
        if counts[0].sum() != adapter.samples:
            raise SystemExit(f"{state} and {counted} were not written together; remove both and begin anew")
    rest = replace(stream, domain=stream.domain[adapter.samples :], index=stream.index[adapter.samples :])
    for batch in rest.batches(protocol.batch_size, args.device):
        wrong = adapter(batch.images).argmax(dim=1).cpu().numpy() != batch.labels
        visits = adapter.samples * args.visits // len(stream)
        more = visits > int(counts[0].sum()) * args.visits // len(stream)
        tallies = [np.bincount(batch.domains, weights, counts[0].size) for weights in (np.ones(len(wrong)), wrong)]
        counts += np.reshape(tallies, counts.shape)
        if more:
            errors = (100 * counts[1] / np.maximum(1, counts[0])).mean(axis=1)[:visits]
            print(f"{adapter.samples:,} of {len(stream):,} samples, visit {visits}: {errors[-1]:.2f} %", flush=True)
            alarms = {reason: n for reason, n in adapter.guard.counts.items() if n}
            keep(args.record, name, {"error_of_each_visit": errors.round(2).tolist(), "guard": alarms})
            np.save(counted, counts)
            adapter.save(state)
    state.unlink()
    counted.unlink()


def main() -> None:
    """Run one part and put it into the record."""
    args = arguments()
    torch.set_num_threads(1)
    if args.part == "million":
        name = f"{args.samples:,} samples, noise {args.noise}, anchor {args.anchor:g}"
        keep(args.record, name, million(args.samples, args.noise, args.anchor))
        return
    reset_on_shift = "" if args.reset_on_shift is None else f", reset_on_shift {args.reset_on_shift:g}"
    stream = (
        f"{args.visits} visits of {args.per_domain} images, anchor {args.anchor:g}{reset_on_shift}, seed {args.seed}"
    )
    recurring(args, f"recurring, {stream}, {args.device}")


def read(path: Path) -> dict[str, Any]:
    """All results so far, by name."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def keep(path: Path, name: str, found: dict[str, Any]) -> None:
    """Put a result into the record, in the place of an earlier one of that name."""
    path.write_text(json.dumps({**read(path), name: found}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__, choose=False)
    parser.add_argument("--part", choices=["million", "recurring"], required=True)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--noise", type=float, default=0.4, help="its share in the tiny images; 0.7 is hard to learn")
    parser.add_argument("--visits", type=int, default=20)
    parser.add_argument("--per-domain", type=int, default=200, help="images of each corruption in each visit")
    parser.add_argument("--anchor", type=float, default=0.0, help="see ResiTTA.anchor")
    parser.add_argument(
        "--reset-on-shift", "--renew", type=float, default=None, help="see ResiTTA; for the recurring stream"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="for the recurring stream")
    parser.add_argument("--cache", type=Path, default=Path("runs/endurance/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
