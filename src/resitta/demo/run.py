"""Train, corrupt, adapt, write the page: what `resitta demo` does."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.bench.loop import Progress, run_stream
from resitta.bench.record import RunRecord, environment, save
from resitta.bench.runner import weights_digest
from resitta.data.corruptions import CORRUPTIONS, SHORT, corrupt
from resitta.data.datasets import ArrayImages
from resitta.data.orders import dirichlet
from resitta.data.streams import Stream, continual
from resitta.demo.digits import Digits, cached_network, keep, load_digits, painted, train
from resitta.method import create, takes_source
from resitta.models.user_code import load_method
from resitta.report.page import write_page
from resitta.report.pictures import Strip, bank_items

METHODS = ("source", "bn", "tent", "rotta", "resitta")
SEVERITY = 5
SAMPLES, FAST_SAMPLES = 3000, 300

INTRO = """A small network was trained on clean handwritten digits. The stream has {count} corruptions in sequence, no
domain labels, and temporally correlated classes: neighbouring images mostly show the same digit. The methods see no
labels; they adapt to the images alone.

BN and TENT normalise by the batch at hand, which holds few classes on such a stream. RoTTA and ResiTTA keep a balanced
memory and move the statistics slowly; ResiTTA also pulls them toward the source."""

FEW = """{samples} images per corruption instead of {usual} are few for the statistics to adapt, and the errors are
not those of the README. Plain `resitta demo` compares the methods."""


def run_demo(
    out: Path,
    *,
    seed: int = 1,
    samples: int = SAMPLES,
    methods: Sequence[str] = METHODS,
    retrain: bool = False,
    bar: Callable[[str], Progress] = lambda _title: lambda _done, _total: None,
) -> tuple[Path, list[RunRecord]]:
    """Run methods over one stream and write the page; return its path and the records.

    `samples`: images per corruption. `methods`: names, or `path/to/file.py:name` for one of your own. `bar` makes a
    progress bar of a title.
    """
    chosen = [create(load_method(name)) for name in methods]  # before the training: a wrong name should not wait for it
    torch.set_num_threads(1)  # the network is so small that a second thread only waits
    digits = load_digits()
    network = source_network(digits, bar("training"), retrain=retrain)
    stream = corrupted_stream(digits, samples, seed, bar("corrupting"))
    clean = painted(digits.train, torch.Generator().manual_seed(0))
    chosen = [create(method, source=clean) if takes_source(method) else method for method in chosen]
    adapters = [adapt(network, method, seed=seed) for method in chosen]
    runs = [run_stream(adapter, stream, progress=bar(f"adapting: {adapter.method.name}")) for adapter in adapters]
    task = {"severity": SEVERITY, "order": "ptta", "per_domain": samples, "batch_size": 64}
    for record in runs:
        about = {"data": "digits", "protocol": task, "weights": weights_digest(network), "seed": seed}
        save(out / f"{record.method}.json", record, environment=environment(), **about)
    command = f"resitta demo --seed {seed} --samples {samples}"
    command += "" if tuple(methods) == METHODS else f" --methods {shlex.join(methods)}"
    return demo_page(out / "index.html", runs, stream, adapters[-1], command), runs


def source_network(digits: Digits, progress: Progress, *, retrain: bool) -> nn.Module:
    """The network trained on clean digits, from the cache if it is there."""
    cached = None if retrain else cached_network()
    network = cached or train(digits, progress)
    if cached is None:
        keep(network)
    progress(1, 1)
    return network


def corrupted_stream(digits: Digits, samples: int, seed: int, progress: Progress) -> Stream:
    """All corruptions, one after the other, each in a temporally correlated order (PTTA)."""
    # A digit that recurs under a corruption is painted again, so that no two images are equal.
    copies = math.ceil(samples / len(digits.test))
    clean = painted(digits.test.repeat(copies, 1, 1, 1)[:samples], torch.Generator().manual_seed(seed))
    labels = np.tile(digits.test_labels, copies)[:samples]
    sets = []
    for done, name in enumerate(CORRUPTIONS, start=1):
        images = corrupt(clean.mul(255).byte(), name, SEVERITY, seed=seed)
        sets.append(ArrayImages(images.numpy(), labels))
        progress(done, len(CORRUPTIONS))
    return continual(CORRUPTIONS, sets, dirichlet, np.random.default_rng(seed))


def demo_page(path: Path, runs: list[RunRecord], stream: Stream, adapter: Adapter, command: str) -> Path:
    """Write the page about the runs; the bank shown is that of the adapter."""
    borders = list(stream.borders)
    first, _ = stream.read(stream.domain[borders], stream.index[borders])
    names = [SHORT[name] for name in stream.names]
    middle = len(stream) // 2
    piece, labels = stream.read(stream.domain[middle : middle + 20], stream.index[middle : middle + 20])
    strips = [
        Strip("The first image of every corruption.", list(first.permute(0, 2, 3, 1).numpy()), names),
        Strip(
            f"{len(labels)} neighbours in the stream, from {len(set(labels.tolist()))} of 10 classes.",
            list(piece.permute(0, 2, 3, 1).numpy()),
            [str(v) for v in labels],
        ),
    ]
    return write_page(
        path,
        title="Handwritten digits under corruption",
        runs=runs,
        intro=INTRO.format(count=len(stream.names)),
        strips=strips,
        bank=bank_items(adapter.learner.memory()),
        classes=[str(digit) for digit in range(10)],
        environment=environment(),
        commands=[command],
    )
