"""What is left of ten faults once they are over, with guards and without; and how often guards cry wolf.

    python benchmarks/faults.py                          # about half an hour on one core
    python benchmarks/faults.py --fault-length 2000 --faults "random noise"

A stream of two corruptions, then a fault of 10,000 samples, then four further corruptions whose error is measured
against a run that never saw the fault. Healthy streams, all 15 corruptions in three orders, count false alarms.
Needs the folder of beds: $RESITTA_BEDS, or --beds. Finished runs are kept in the record and not run again.
"""

import argparse
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_streams import FAULTS, Source

from resitta.adapter import Adapter, adapt
from resitta.bench.metrics import Metrics
from resitta.bench.protocol import Protocol, open_domains
from resitta.events import Event, GuardFired
from resitta.models import create as create_model
from resitta.streams.datasets import open_images
from resitta.streams.stream import Stream

BEFORE, AFTER = ("motion_blur", "snow"), ("fog", "shot_noise", "brightness", "jpeg_compression")
NO_FAULT = "none"
HEALTHY = [("resitta", order) for order in ("ptta", "iid", "sorted")]
HEALTHY += [(method, "ptta") for method in ("source", "bn", "pl", "tent", "note", "rotta")]
RECORD = Path(__file__).parent / "records" / "faults.json"


class Ground:
    """The bed cifar10-wrn16x1, opened once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = create_model("wrn16x1", args.beds / "cifar10-wrn16x1.safetensors")
        known = next(iter(self._sets(Protocol(corruptions=BEFORE[-1:])).values()))
        self.source = Source(known, open_images(args.beds / "cifar100-test.zip"), self.model)

    def _sets(self, protocol: Protocol) -> Any:
        return open_domains(protocol, self.args.beds / "cifar10-test.zip", cache=self.args.cache)

    def stream(self, **protocol: Any) -> Stream:
        """A stream of this bed's images."""
        chosen = Protocol(per_domain=self.args.per_domain, **protocol)
        return chosen.stream(self._sets(chosen), self.args.seed)

    def adapter(self, method: str, guard: bool) -> tuple[Adapter, list[GuardFired]]:
        """A fresh adapter and the list into which its guard's events go."""
        adapter = adapt(self.model, method, seed=self.args.seed, non_finite="skip", guard=guard)
        fired: list[GuardFired] = []

        def note(event: Event) -> None:
            if isinstance(event, GuardFired):
                fired.append(event)

        adapter.listen(note)
        return adapter, fired


def error_after(ground: Ground, fault: str, guard: bool) -> dict[str, Any]:
    """Run before, fault and after; return the error after, in total and per corruption, and what the guard did."""
    adapter, fired = ground.adapter("resitta", guard)
    predict(adapter, ground.stream(corruptions=BEFORE))
    if fault != NO_FAULT:
        batches = FAULTS[fault](ground.source, np.random.default_rng(ground.args.seed))
        for images in islice(batches, ground.args.fault_length // ground.source.batch_size):
            adapter(images)
    errors = predict(adapter, ground.stream(corruptions=AFTER))
    return {"error": float(np.mean(errors)), "errors": errors, **deeds(adapter, fired)}


def predict(adapter: Adapter, stream: Stream) -> list[float]:
    """The error of each domain in per cent."""
    metrics = Metrics()
    for batch in stream.batches(64):
        metrics.add(adapter(batch.images), batch.labels, batch.domains)
    return [round(error, 2) for error in metrics.domain_errors(len(stream.names))]


def false_alarms(ground: Ground, method: str, order: str) -> dict[str, Any]:
    """Run a healthy stream of all corruptions under a guard."""
    adapter, fired = ground.adapter(method, guard=True)
    errors = predict(adapter, ground.stream(order=order))
    return {"error": float(np.mean(errors)), "samples": adapter.samples, **deeds(adapter, fired)}


def deeds(adapter: Adapter, fired: list[GuardFired]) -> dict[str, Any]:
    """What a guard has counted and told."""
    counts = {} if adapter.guard is None else {reason: n for reason, n in adapter.guard.counts.items() if n}
    return {"events": len(fired), "counts": counts}


def runs(ground: Ground) -> Iterator[tuple[str, Any]]:
    """Every run of the benchmark: its key in the record, and a function that makes it."""
    for fault in (NO_FAULT, *ground.args.faults):
        for guard in (True, False):
            key = f"fault: {fault}, {ground.args.fault_length} samples, guard {'on' if guard else 'off'}"
            yield key, lambda fault=fault, guard=guard: error_after(ground, fault, guard)
    for method, order in HEALTHY:
        yield f"healthy: {method}, {order}", lambda m=method, o=order: false_alarms(ground, m, o)


def fault_table(record: dict[str, Any], length: int) -> str:
    """Errors after each fault, and in brackets their distance from the run that never saw it."""
    lines = [f"{'error after the fault, %':28}{'guarded':>16}{'unguarded':>16}"]
    for fault in (NO_FAULT, *FAULTS):
        cells = [cell(record, fault, length, guard) for guard in ("on", "off")]
        lines.append(f"{fault:28}" + "".join(f"{text:>16}" for text in cells))
    return "\n".join(lines)


def cell(record: dict[str, Any], fault: str, length: int, guard: str) -> str:
    """One cell of the table, empty where there is no run."""
    found, without = (record.get(f"fault: {f}, {length} samples, guard {guard}") for f in (fault, NO_FAULT))
    if found is None or without is None:
        return ""
    return f"{found['error']:.1f} ({found['error'] - without['error']:+.1f})"


def main() -> None:
    """Run what the record lacks, and print the tables."""
    args = arguments()
    torch.set_num_threads(1)
    record = json.loads(args.record.read_text()) if args.record.exists() else {}
    for key, make in runs(Ground(args)):
        if key not in record:
            record[key] = make()
            args.record.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{key}: {record[key]}", flush=True)
    print(fault_table(record, args.fault_length))
    alarms = sum(found["events"] for key, found in record.items() if key.startswith("healthy"))
    print(f"false alarms on healthy streams: {alarms}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--faults", nargs="*", choices=sorted(FAULTS), default=list(FAULTS))
    parser.add_argument("--fault-length", type=int, default=10_000, help="samples that a fault lasts")
    parser.add_argument("--per-domain", type=int, default=1000, help="images of each corruption")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("runs/faults/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
