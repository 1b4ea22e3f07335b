"""How much the number of classes in a batch matters to BN: ImageNet sorted by class against shuffled.

    python benchmarks/sorted_batches.py                       (contrast; about half an hour on one core)
    python benchmarks/sorted_batches.py --corruption fog --device cuda

Our images hold two of each class, so a sorted batch of 64 has 32 classes, one of 26 has 13 as in the paper's set with
five of each. Needs the folder of beds: $RESITTA_BEDS, or --beds.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from beds import BEDS

from resitta import adapt
from resitta.bench.metrics import Metrics
from resitta.bench.protocol import OrderName, Protocol, open_domains
from resitta.models import create

BED = "imagenet-resnet50"
ORDERS: tuple[OrderName, ...] = ("sorted", "iid")


def main() -> None:
    """Print the error of BN for both sizes and orders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", type=Path, default=Path(os.environ.get("RESITTA_BEDS", "../shared/beds")))
    parser.add_argument("--corruption", default="contrast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/sorted_batches/corrupted"))
    args = parser.parse_args()
    for size in (64, 26):
        for order in ORDERS:
            protocol = Protocol(corruptions=(args.corruption,), order=order, batch_size=size)
            error, classes = error_of_bn(protocol, args)
            print(f"batches of {size}, {order}: {classes:.0f} classes in a batch, error {error:.1f} %", flush=True)


def error_of_bn(protocol: Protocol, args: argparse.Namespace) -> tuple[float, float]:
    """The error in per cent, and the mean number of classes in a batch."""
    bed = BEDS[BED]
    model = create(bed.model, args.beds / f"{BED}.safetensors", **bed.options).to(args.device)
    sets = open_domains(protocol, args.beds / bed.images, cache=args.cache, device=args.device)
    adapter, metrics, classes = adapt(model, "bn"), Metrics(), []
    for batch in protocol.stream(sets, 1).batches(protocol.batch_size, args.device):
        metrics.add(adapter(batch.images), batch.labels, batch.domains)
        classes.append(len(np.unique(batch.labels)))
    return metrics.domain_errors(1)[0], float(np.mean(classes))


if __name__ == "__main__":
    main()
