"""How many changes of domain `ResiTTA(reset_on_shift=...)` detects, and how many false alarms it gives.

    python benchmarks/shifts.py
    python benchmarks/shifts.py --bed cifar100-resnext29 --orders ptta --bounds 2

Streams of all 15 corruptions, one after the other, as in benchmarks/beds.py. The first alarm after a change counts as
noticing it, at once within 128 images, else late; any other is false. Needs the folder of testbeds (see beds.py).
"""

import argparse
import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from beds import TESTBEDS, with_testbeds

from resitta.bench.experiments import TASKS
from resitta.bench.protocol import Protocol, open_domains
from resitta.training.domain_shift import WINDOW, DomainShiftDetector

RECORD = Path(__file__).parent / "records" / "shifts.json"
AT_ONCE = 2 * WINDOW


def main() -> None:
    """Run every stream once, with one detector per bound, and keep the counts."""
    args = arguments()
    record = json.loads(args.record.read_text()) if args.record.exists() else {}
    for order, seed in product(args.orders, args.seeds):
        protocol = replace(TASKS[TESTBEDS[args.bed].task].protocol, order=order, per_domain=args.per_domain)
        for bound, found in count(args, protocol, seed).items():
            name = f"{args.bed}, {order}, seed {seed}, bound {bound:g}"
            record[name] = found
            print(f"{name}: {found}", flush=True)
        args.record.write_text(json.dumps(record, indent=1) + "\n")


def count(args: argparse.Namespace, protocol: Protocol, seed: int) -> dict[float, dict[str, int]]:
    """For each bound, how many changes were noticed at once, late, or never, and how many alarms were false."""
    sets = open_domains(protocol, args.beds / TESTBEDS[args.bed].images, cache=args.cache, device=args.device)
    shifts, alarms = (
        {bound: DomainShiftDetector(bound) for bound in args.bounds},
        {bound: list[int]() for bound in args.bounds},
    )
    domains, seen = list[int](), 0
    for batch in protocol.stream(sets, seed).batches(protocol.batch_size, args.device):
        for bound, shift in shifts.items():
            if (begun := shift(batch.images)) is not None:
                alarms[bound].append(seen + begun + WINDOW)
        domains += torch.as_tensor(batch.domains).tolist()
        seen += len(batch.images)
    borders = [place for place in range(1, seen) if domains[place] != domains[place - 1]]
    return {bound: judge(found, borders) for bound, found in alarms.items()}


def judge(alarms: list[int], borders: list[int]) -> dict[str, int]:
    """Match every alarm, told after its window, with the change before it."""
    firsts: dict[int, int] = {}
    counts = Counter[str]()
    for alarm in alarms:
        border = max((b for b in borders if b < alarm), default=0)
        if border == 0 or border in firsts:
            counts["false"] += 1
        else:
            firsts[border] = alarm
            counts["at once" if alarm - border <= AT_ONCE else "late"] += 1
    return {"changes": len(borders), **{name: counts[name] for name in ("at once", "late", "false")}}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--orders", nargs="+", default=["ptta", "sorted", "iid"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--bounds", type=float, nargs="+", default=[1.5, 2.0, 3.0])
    parser.add_argument("--per-domain", type=int, default=None, help="images per corruption (default: all)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/shifts/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
