"""What is left of eleven faults once they are over, with guards and without; and how often guards cry wolf.

    python benchmarks/faults.py                          # about half an hour on one core
    python benchmarks/faults.py --fault-length 2000 --faults "random noise"
    python benchmarks/faults.py --per-domain 2000 --seeds 1 2 3 --device cuda --record FILE

A stream of two corruptions, then a fault of 10,000 samples, then four further corruptions whose error is measured
against a run that never saw the fault; one that hides among ordinary images, against a run that saw those alone.
Healthy streams, all 15 corruptions in three orders and through several methods, count false alarms.
Needs the folder of testbeds: $RESITTA_BEDS, or --beds. Finished runs are kept in the record and not run again.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beds import load_network, with_testbeds
from fault_streams import CONTROLS, FAULTS, Fault, Source

from resitta.adapter import Adapter, adapt
from resitta.bench.loop import Metrics
from resitta.bench.protocol import Protocol, open_domains
from resitta.data.datasets import open_images
from resitta.monitor.events import Event, GuardFired

BEFORE, AFTER = ("motion_blur", "snow"), ("fog", "shot_noise", "brightness", "jpeg_compression")
NO_FAULT = "none"
HEALTHY = [("resitta", order) for order in ("ptta", "iid", "sorted")]
HEALTHY += [(method, "ptta") for method in ("source", "bn", "pl", "tent", "note", "rotta")]
RECORD = Path(__file__).parent / "records" / "faults.json"


class Ground:
    """The testbed cifar10-wrn16x1, opened once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = load_network("cifar10-wrn16x1", args.beds, args.device)
        known = next(iter(self._sets(Protocol(corruptions=BEFORE[-1:])).values()))
        foreign = open_images(args.beds / "cifar100-test.zip")
        self.source = Source(known, foreign, load_network("cifar10-wrn16x1", args.beds), args.fault_length)

    def _sets(self, protocol: Protocol) -> Any:
        return open_domains(protocol, self.args.beds / "cifar10-test.zip", cache=self.args.cache)

    def predict(self, adapter: Adapter, seed: int, **protocol: Any) -> list[float]:
        """Feed a stream of this testbed's images; return the error of each domain in per cent."""
        chosen, metrics = Protocol(per_domain=self.args.per_domain, **protocol), Metrics()
        stream = chosen.stream(self._sets(chosen), seed)
        for batch in stream.batches(chosen.batch_size, self.args.device):
            metrics.add(adapter(batch.images), batch.labels, batch.domains)
        return [round(error, 2) for error in metrics.domain_errors(len(stream.names))]

    def adapter(self, method: str, guard: bool, seed: int) -> tuple[Adapter, list[GuardFired]]:
        """A fresh adapter and the list into which its guard's events go."""
        settings = (
            {"anchor": self.args.anchor, "reset_on_shift": self.args.reset_on_shift} if method == "resitta" else {}
        )
        adapter = adapt(self.model, method, seed=seed, non_finite="skip", guard=guard, **settings)
        fired: list[GuardFired] = []

        def note(event: Event) -> None:
            if isinstance(event, GuardFired):
                fired.append(event)

        adapter.listen(note)
        return adapter, fired


def error_after(ground: Ground, fault: Fault | None, guard: bool, seed: int) -> dict[str, Any]:
    """Run before, fault and after; return the error after, in total and per corruption, and what the guard did."""
    adapter, fired = ground.adapter("resitta", guard, seed)
    ground.predict(adapter, seed, corruptions=BEFORE)
    if fault is not None:
        batches = fault(ground.source, np.random.default_rng(seed))
        for images in islice(batches, ground.args.fault_length // ground.source.batch_size):
            adapter(images.to(ground.args.device))
    errors = ground.predict(adapter, seed, corruptions=AFTER)
    return {"error": round(float(np.mean(errors)), 2), "errors": errors, **deeds(adapter, fired)}


def false_alarms(ground: Ground, method: str, order: str) -> dict[str, Any]:
    """Run a healthy stream of all corruptions under a guard."""
    seed = ground.args.seeds[0]
    adapter, fired = ground.adapter(method, guard=True, seed=seed)
    errors = ground.predict(adapter, seed, order=order)
    return {"error": round(float(np.mean(errors)), 2), "samples": adapter.samples, **deeds(adapter, fired)}


def deeds(adapter: Adapter, fired: list[GuardFired]) -> dict[str, Any]:
    """What a guard has counted and told."""
    counts = {} if adapter.guard is None else {reason: n for reason, n in adapter.guard.counts.items() if n}
    return {"events": len(fired), "counts": counts}


def fault_runs(args: argparse.Namespace) -> Iterator[tuple[str, Fault | None, bool, int]]:
    """Every run with a fault, or without one: its key in the record, the fault, whether guarded, the seed."""
    faults = {name: FAULTS[name] for name in args.faults}
    for name, fault in {NO_FAULT: None, **{f.__name__: f for f in CONTROLS.values()}, **faults}.items():
        for guard, seed in product((True, False), args.seeds):
            yield key(name, args.fault_length, guard, seed), fault, guard, seed


def key(fault: str, length: int, guard: bool, seed: int) -> str:
    """The name of a run in the record."""
    return f"fault: {fault}, {length} samples, guard {'on' if guard else 'off'}, seed {seed}"


def fault_table(record: dict[str, Any], args: argparse.Namespace) -> str:
    """Errors after each fault, and in brackets their distance from the run that never saw it; means over the seeds."""
    lines = [f"{'error after the fault, %':28}{'guarded':>16}{'unguarded':>16}"]
    for fault in args.faults:
        control = CONTROLS[fault].__name__ if fault in CONTROLS else NO_FAULT
        line = f"{fault:28}"
        for guard in (True, False):
            found, without = (
                np.mean([record[key(name, args.fault_length, guard, seed)]["error"] for seed in args.seeds])
                for name in (fault, control)
            )
            line += f"{found:8.1f} ({found - without:+.1f})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Run what the record lacks, and print the tables."""
    args = arguments()
    torch.set_num_threads(1)
    record = json.loads(args.record.read_text()) if args.record.exists() else {}
    ground = Ground(args)
    jobs = {name: partial(error_after, ground, fault, guard, s) for name, fault, guard, s in fault_runs(args)}
    healthy = [] if args.faults_only else HEALTHY
    jobs |= {f"healthy: {method}, {order}": partial(false_alarms, ground, method, order) for method, order in healthy}
    for name, job in jobs.items():
        if name not in record:
            record[name] = job()
            args.record.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {record[name]}", flush=True)
    print(fault_table(record, args))
    alarms = sum(found["events"] for name, found in record.items() if name.startswith("healthy"))
    print(f"false alarms on healthy streams: {alarms}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = with_testbeds(__doc__, choose=False)
    parser.add_argument("--faults", nargs="*", choices=sorted(FAULTS), default=list(FAULTS))
    parser.add_argument("--faults-only", action="store_true", help="leave out the healthy streams")
    parser.add_argument("--fault-length", type=int, default=10_000, help="samples that a fault lasts")
    parser.add_argument("--per-domain", type=int, default=1000, help="images of each corruption")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--anchor", type=float, default=0.0, help="see ResiTTA.anchor")
    parser.add_argument("--reset-on-shift", "--renew", type=float, default=None, help="see ResiTTA.reset_on_shift")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/faults/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
