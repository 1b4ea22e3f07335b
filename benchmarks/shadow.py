"""What `shadow=` costs, whether `fallback=True` notices injected harm, and how often it falls back by chance.

    OMP_NUM_THREADS=1 python benchmarks/shadow.py

WRN-16-1 and the photographs of `resitta demo`, under the 15 corruptions in sequence, in batches of 64; no testbed is
needed. `cost`: the processor time of an adapter with a shadow over that of one without, in alternating calls.
`harm`: TENT learns with the rate 0.1 for some time, then continues with the networks and the rate of before. The
classes are in no order, since TENT needs that.
Every compared image is labelled `--delay` images after its prediction. `unlabelled`: what can be seen without labels,
in spans that help and in spans that harm. `chance`: simulated labels of networks that are equally accurate.
"""

import argparse
import copy
import json
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resitta import Adapter, adapt
from resitta.bench.protocol import Protocol, open_domains
from resitta.bench.record import environment
from resitta.demo.photographs import load_photographs, source_network
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import Event, FellBack, Resumed
from resitta.monitor.shadow.comparison import source_ahead_by_chance
from resitta.monitor.shadow.shadow import FALL_BACK, LABELLED
from resitta.training.optimizer import Optimizer

RECORD = Path(__file__).parent / "records" / "shadow.json"
BATCH, HARMFUL_LR = 64, 0.1
Batches = list[tuple[Tensor, Tensor]]


def main() -> None:
    """Measure, print and keep the record."""
    args = arguments()
    protocol = Protocol(per_domain=args.per_domain, order="iid")
    sets = open_domains(protocol, load_photographs(), cache=args.cache)
    batches = [
        (batch.images, torch.as_tensor(batch.labels))
        for batch in protocol.stream(sets, args.seed).batches(BATCH, "cpu")
    ]
    record: dict[str, Any] = {"environment": environment(torch.device("cpu")), "threads": torch.get_num_threads()}
    record["cost"] = {method: cost(method, batches[: args.batches], args.rounds) for method in args.methods}
    record["harm"] = harm(batches, args)
    record["chance"] = {f"{differ:.0%} differ": by_chance(differ) for differ in (0.2, 0.4)}
    print(json.dumps(record, indent=1))
    args.record.write_text(json.dumps(record, indent=1) + "\n")


def cost(method: str, batches: Batches, rounds: int) -> dict[str, Any]:
    """The ratios of times with a shadow of 5 % to times without, round by round."""
    model = source_network()
    adapters = [adapt(model, method), adapt(model, method, shadow=0.05)]
    ratios = []
    for number in range(rounds + 1):
        seconds = [0.0, 0.0]
        for index, (images, _) in enumerate(batches):
            for which in (0, 1) if (index + number) % 2 else (1, 0):
                begin = time.process_time()
                adapters[which](images)
                seconds[which] += time.process_time() - begin
        if number:  # the first warms up
            ratios.append(seconds[1] / seconds[0])
    shadow = adapters[1].stats.shadow
    assert shadow is not None
    assert shadow.running is not None
    share = shadow.running.compared / shadow.predicted
    return {"ratio": statistics.median(ratios), "rounds": [round(ratio, 4) for ratio in ratios], "compared": share}


def harm(batches: Batches, args: argparse.Namespace) -> dict[str, Any]:
    """When fallback switches, in images, while the learning rate is wrong for a while; and what the others lost."""
    model = source_network()
    adapter = adapt(model, "tent", shadow=args.share, fallback=True)
    source, plain = adapt(model, "source"), Adapted()
    adapter.add_callback(plain)
    switches, spans = list[tuple[str, int]](), list[dict[str, Any]]()
    adapter.listen(lambda event: _note(event, switches))
    late = deque[tuple[list[int], Tensor]]()
    borders = {"helps": 0, "harm begins": args.harm, "harm ends": args.heal}
    healthy: dict[str, Any] = {}
    right = np.zeros(3)
    for index, (images, labels) in enumerate(batches[: args.images // BATCH]):
        at = index * BATCH
        for name, place in borders.items():
            if place <= at < place + BATCH:
                if index:
                    spans.append(_span(adapter, right, spans))
                    right[:] = 0
                if name == "harm begins":
                    healthy = copy.deepcopy(adapter.learner.state_dict())
                    set_rate(adapter)
                if name == "harm ends":
                    adapter.learner.load_state_dict(healthy)  # the rate is part of it
        answers = adapter(images).argmax(1), plain.classes, source(images).argmax(1)
        right += [float((answer == labels).float().sum()) for answer in answers]
        answered = adapter.answered
        chosen = [place for place, compared in enumerate(answered.compared) if compared]
        late.append(([answered.ids[place] for place in chosen], labels[chosen]))
        while late and len(late) * BATCH > args.delay:
            adapter.feedback(*late.popleft())
    spans.append(_span(adapter, right, spans))
    return {"share": args.share, "delay": args.delay, "borders": borders, "switches": switches, "spans": spans}


class Adapted(Callback):
    """The classes that the adapted network predicts, whatever is returned."""

    classes = torch.empty(0)

    def after_step(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
        """Note them."""
        self.classes = logits.argmax(1)


def set_rate(adapter: Adapter) -> None:
    """Make the learning rate of a running adapter harmful."""
    for module in adapter.learner.modules():
        if isinstance(module, Optimizer) and module.inner is not None:
            for group in module.inner.param_groups:
                group["lr"] = HARMFUL_LR


def _note(event: Event, switches: list[tuple[str, int]]) -> None:
    if isinstance(event, FellBack | Resumed):
        switches.append((type(event).__name__, event.samples))


def _span(adapter: Adapter, right: Any, spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies so far in a span, and what shows without labels at its end."""
    shadow = adapter.stats.shadow
    assert shadow is not None
    assert shadow.recent is not None
    seen = shadow.predicted - sum(span["images"] for span in spans)
    names = ("with fallback", "without", "source")
    unlabelled = {name: round(value, 3) for name, value in vars(shadow.recent).items()}
    accuracies = dict(zip(names, (right / seen).round(4).tolist(), strict=True))
    return {"images": seen, "accuracy": accuracies, "unlabelled": unlabelled}


def by_chance(differ: float, *, labels: int = 20_000, runs: int = 50) -> dict[str, float]:
    """How often equally accurate networks that differ in a share of the images fall back, per 10,000 labels."""
    rng, count = np.random.default_rng(0), 0
    table = {
        (won, lost): source_ahead_by_chance(lost, won)
        for won in range(LABELLED + 1)
        for lost in range(LABELLED + 1 - won)
    }
    for _ in range(runs):
        draws = rng.choice(3, size=labels, p=[1 - differ, differ / 2, differ / 2])
        won, lost = ([0, *np.cumsum(draws == kind).tolist()] for kind in (1, 2))
        since = 0
        for place in range(1, labels + 1):
            start = max(since, place - LABELLED)
            if table[won[place] - won[start], lost[place] - lost[start]] < FALL_BACK:
                count, since = count + 1, place
    return {"fallbacks per 10,000 labels": count / (runs * labels) * 10_000}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["resitta", "source"])
    parser.add_argument("--batches", type=int, default=12, help="batches of a round of `cost`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--delay", type=int, default=320, help="images between a prediction and its label")
    parser.add_argument("--per-domain", type=int, default=560)
    parser.add_argument("--harm", type=int, default=64 * 40, help="images before the harm")
    parser.add_argument("--heal", type=int, default=64 * 80, help="images before it ends")
    parser.add_argument("--images", type=int, default=64 * 132, help="images of `harm`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("runs/shadow/corrupted"))
    parser.add_argument("--record", type=Path, default=RECORD)
    return parser.parse_args()


if __name__ == "__main__":
    main()
