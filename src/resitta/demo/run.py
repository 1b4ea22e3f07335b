"""Open the images, run the methods, write the page: what `resitta demo` does."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from resitta.bench.api import choose
from resitta.bench.record import RunRecord, environment
from resitta.bench.runner import Bench, Job
from resitta.data.corruptions import SHORT
from resitta.data.streams import Stream
from resitta.demo.digits import DIGITS
from resitta.demo.photographs import PHOTOGRAPHS
from resitta.demo.runs import Run, run_in_processes, run_one, title
from resitta.demo.subject import Bar, Subject
from resitta.errors import BadSetting, require
from resitta.method import Method
from resitta.report.groups import grouped
from resitta.report.page import write_page
from resitta.report.pictures import Strip, to_pixels
from resitta.report.timeline import Timeline, typical_change

SUBJECTS = {"photographs": PHOTOGRAPHS, "digits": DIGITS}
THUMBNAILS = 10


def run_demo(
    out: Path,
    subject: str = "photographs",
    *,
    seed: int = 1,
    samples: int | None = None,
    methods: Sequence[str | Method] = (),
    retrain: bool = False,
    workers: int | None = None,
    bar: Bar = lambda _title: lambda _done, _total: None,
) -> tuple[Path, list[RunRecord]]:
    """Run methods over one stream and write the page; return its path and the records.

    `samples`: images per corruption. `methods`: names, or `path/to/file.py:name` for one of your own; by default those
    of the subject. `workers`: processes at a time, by default one per core. `bar` makes a progress bar of a title.
    """
    for package in ("PIL.Image", "jinja2", "safetensors"):
        require(package, "demo")
    shown = SUBJECTS[subject]
    samples = shown.samples if samples is None else samples
    for name, number in (("samples", samples), ("workers", workers)):
        if number is not None and number < 1:
            raise BadSetting(f"{name} must be 1 or more, found {number}")
    # Before the training: a wrong name should not wait for it.
    jobs = [Job(method=method, seed=seed) for method in choose(methods or shown.methods)]
    torch.set_num_threads(1)  # the networks are so small that a second thread only waits
    spec = shown.open(out, samples=samples, seed=seed, retrain=retrain, bar=bar)
    bench = spec.open(bar("corrupting"))
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers == 1:
        runs = [run_one(bench, job, shown.classes, bar(title(job))) for job in jobs]
    else:
        runs = run_in_processes(spec, jobs, shown.classes, workers, bar)
    command = ["resitta", "demo", *([subject] if subject != "photographs" else []), f"--seed={seed}"]
    command += [f"--samples={samples}", *(["--methods", *map(str, methods)] if methods else [])]
    page = demo_page(out / "index.html", shown, runs, bench, shlex.join(command))
    return page, [run.record for run in runs]


def demo_page(path: Path, shown: Subject, runs: Sequence[Run], bench: Bench, command: str) -> Path:
    """Write the page about the runs: about the best one with a label prior, or about the last one."""
    priors = [run for run in runs if run.timeline is not None]
    ours = min(priors, key=lambda run: run.record.average, default=runs[-1])
    records = [run.record for run in runs]
    stream = bench.protocol.stream(bench.sets, ours.record.seed)
    timeline = None if ours.timeline is None else typical_change(ours.timeline)
    return write_page(
        path,
        title=shown.title,
        runs=records,
        intro=shown.intro,
        strips=stream_strips(stream, shown.classes),
        timeline=timeline,
        changed=[] if timeline is None else changed_strips(timeline, stream, shown.classes),
        bank=ours.bank,
        classes=shown.classes,
        environment=environment(),
        commands=[command],
        highlight=""
        if timeline is None
        else next(group.label for group in grouped(records) if ours.record in group.runs),
    )


def stream_strips(stream: Stream, classes: Sequence[str]) -> list[Strip]:
    """The first image of every domain, and neighbours from the middle of the stream."""
    first, _ = stream.read(stream.domain[list(stream.borders)], stream.index[list(stream.borders)])
    middle = slice(len(stream) // 2, len(stream) // 2 + 20)
    piece, labels = stream.read(stream.domain[middle], stream.index[middle])
    neighbours = f"{len(labels)} neighbours in the stream, from {len(set(labels.tolist()))} of {len(classes)} classes."
    return [
        Strip("The first image of every corruption.", list(to_pixels(first)), [SHORT[name] for name in stream.names]),
        Strip(neighbours, list(to_pixels(piece)), [classes[label] for label in labels]),
    ]


def changed_strips(timeline: Timeline, stream: Stream, classes: Sequence[str]) -> list[Strip]:
    """Images of a stretch whose label the prior corrected, and such as it made wrong."""
    strips = []
    for what, places in (("corrected", timeline.helped), ("made wrong", timeline.harmed)):
        if not len(places):
            continue
        some = places[np.unique(np.linspace(0, len(places) - 1, THUMBNAILS).astype(np.int64))]
        at = some + timeline.first
        images, _ = stream.read(stream.domain[at], stream.index[at])
        pairs = zip(timeline.plain[some], timeline.corrected[some], strict=True)
        labels = [f"{classes[before]} → {classes[after]}" for before, after in pairs]
        caption = (
            f"{len(some)} of the {len(places)} images above whose label the prior {what}: without → with the prior."
        )
        strips.append(Strip(caption, list(to_pixels(images)), labels))
    return strips
