"""The demo: a real model meets corrupted, temporally correlated images and recovers, within a minute or two."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.bench.record import RunRecord, environment, save
from resitta.bench.run import run
from resitta.demo.digits import Digits, cached_network, keep, load_digits, train
from resitta.report.page import BankItem, write_page
from resitta.report.tables import error_table
from resitta.streams.corruptions import CORRUPTIONS, SHORT, corrupt
from resitta.streams.datasets import ArrayImages
from resitta.streams.order import dirichlet
from resitta.streams.stream import Stream, continual
from resitta.terminal import Bar, bars, console

METHODS = ("source", "bn", "tent", "rotta", "resitta")
SEVERITY = 5


def run_demo(out: Path, *, seed: int = 1, samples: int = 1600, retrain: bool = False) -> Path:
    """Train, corrupt, adapt, report; returns the page."""
    torch.set_num_threads(1)  # the network is so small that a second thread only waits
    with bars() as bar:
        digits = load_digits()
        network = source_network(digits, bar("training"), retrain=retrain)
        stream = corrupted_stream(digits, samples, seed, bar("corrupting"))
        runs, adapters = [], {}
        for name in METHODS:
            adapters[name] = adapt(network, name, seed=seed)
            runs.append(run(adapters[name], stream, progress=bar(f"adapting: {name}")))
    for record in runs:
        save(out / f"{record.method}.json", record, environment=environment())
    page = demo_page(out / "index.html", runs, stream, adapters["resitta"], command=demo_command(seed, samples))
    screen = console()
    screen.print(error_table(runs).to_rich())
    screen.print(f"\nThe page with all figures: {page.resolve()}", soft_wrap=True, highlight=False)
    return page


def source_network(digits: Digits, progress: Bar, *, retrain: bool) -> nn.Module:
    """The network trained on clean digits, from the cache if it is there."""
    cached = None if retrain else cached_network()
    if cached is not None:
        progress(1, 1)
        return cached
    network = train(digits, progress)
    keep(network)
    return network


def corrupted_stream(digits: Digits, samples: int, seed: int, progress: Bar) -> Stream:
    """All corruptions, one after the other, each in a temporally correlated order (PTTA)."""
    sets = []
    copies = math.ceil(samples / len(digits.test))
    labels = np.tile(digits.test_labels, copies)[:samples]
    for done, name in enumerate(CORRUPTIONS, start=1):
        # A digit that appears twice under one corruption gets fresh noise each time.
        images = torch.cat([corrupt(digits.test, name, SEVERITY, seed=copy) for copy in range(copies)])[:samples]
        sets.append(ArrayImages(images.numpy(), labels))
        progress(done, len(CORRUPTIONS))
    return continual(CORRUPTIONS, sets, dirichlet, np.random.default_rng(seed))
