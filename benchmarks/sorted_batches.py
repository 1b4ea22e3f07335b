"""How much the number of classes in a batch matters: ImageNet sorted by class, against shuffled and smaller batches.

    python benchmarks/sorted_batches.py                       (BN under contrast; about half an hour on one core)
    python benchmarks/sorted_batches.py --method pl --corruptions motion_blur snow --sizes 26 --orders sorted

Our images hold two of each class, so a sorted batch of 64 has 32 classes, one of 26 has 13 as in the paper's set with
five of each. Needs the folder of beds: $RESITTA_BEDS, or --beds. Errors go to the record as they come.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from beds import BEDS

from resitta import adapt
from resitta.bench.metrics import Metrics
from resitta.bench.protocol import Protocol, open_domains
from resitta.models import create

BED = "imagenet-resnet50"
RECORD = Path(__file__).parent / "records" / "sorted_batches.json"


def main() -> None:
    """Print the error of the method for every size and order."""
    args = arguments()
    torch.set_num_threads(args.threads)
    for size in args.sizes:
        for order in args.orders:
            protocol = Protocol(corruptions=tuple(args.corruptions), order=order, batch_size=size)
            errors, classes = errors_of(args, protocol)
            name = f"{args.method}, batches of {size}, {order}"
            print(f"{name}: {classes:.0f} classes in a batch, error {errors} %", flush=True)
            found = json.loads(args.record.read_text()) if args.record.exists() else {}
            found.setdefault(name, {"classes_in_a_batch": round(classes, 1)}).update(errors)
            args.record.write_text(json.dumps(found, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--method", default="bn")
    parser.add_argument("--corruptions", nargs="+", default=["contrast"], help="one after the other, without a reset")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 26], help="of batches")
    parser.add_argument("--orders", nargs="+", choices=["sorted", "iid"], default=["sorted", "iid"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("runs/sorted_batches/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


def errors_of(args: argparse.Namespace, protocol: Protocol) -> tuple[dict[str, float], float]:
    """The error in per cent under each corruption, and the mean number of classes in a batch."""
    bed = BEDS[BED]
    model = create(bed.model, args.beds / f"{BED}.safetensors", **bed.options).to(args.device)
    sets = open_domains(protocol, args.beds / bed.images, cache=args.cache, device=args.device)
    adapter, metrics, classes = adapt(model, args.method, preset="imagenet"), Metrics(), []
    for batch in protocol.stream(sets, 1).batches(protocol.batch_size, args.device):
        metrics.add(adapter(batch.images), batch.labels, batch.domains)
        classes.append(len(np.unique(batch.labels)))
    errors = metrics.domain_errors(len(protocol.corruptions))
    return {name: round(e, 1) for name, e in zip(protocol.corruptions, errors, strict=True)}, float(np.mean(classes))


if __name__ == "__main__":
    main()
