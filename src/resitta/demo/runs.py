"""Run the methods of a demo, several at a time, and keep what its page shows of each."""

import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resitta.adapter import Adapter
from resitta.bench.executors import end_at_ctrl_c, opened, packed
from resitta.bench.loop import Progress, run_stream
from resitta.bench.record import RunRecord, environment, load, save
from resitta.bench.runner import Bench, BenchSpec, Job
from resitta.data.streams import Stream
from resitta.demo.subject import Bar
from resitta.errors import WorkerLost
from resitta.monitor.callbacks import Callback
from resitta.report.charts import spans_of
from resitta.report.pictures import BankItem, bank_items
from resitta.report.timeline import Timeline

TICK = 0.2
"""Seconds between two looks at how far the workers are."""


@dataclass(frozen=True)
class Run:
    """What a run left: its record, the bank at its end and, with a label prior, what that changed."""

    record: RunRecord
    bank: tuple[BankItem, ...]
    timeline: Timeline | None


class Predictions(Callback):
    """Collects the classes that an adapter predicts, before and after its label prior corrects them."""

    def __init__(self, adapter: Adapter) -> None:
        self._plain: list[NDArray[np.int64]] = []
        self._corrected: list[NDArray[np.int64]] = []
        adapter.add_callback(self)  # callbacks get the plain logits, a forward hook what is returned
        adapter.register_forward_hook(lambda _module, _images, logits: self._corrected.append(_classes(logits)))

    def after_step(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
        """Note what the network says by itself."""
        self._plain.append(_classes(logits))

    def timeline(self, stream: Stream) -> Timeline:
        """All predictions, beside the true classes."""
        labels = np.concatenate([images.labels for images in stream.sets])
        starts = np.cumsum([0, *(len(images) for images in stream.sets)])
        return Timeline(
            labels=labels[starts[stream.domain] + stream.index],
            plain=np.concatenate(self._plain),
            corrected=np.concatenate(self._corrected),
            spans=spans_of(stream.names, stream.borders, len(stream)),
        )


def _classes(logits: Tensor) -> NDArray[np.int64]:
    classes: NDArray[np.int64] = logits.argmax(dim=1).cpu().numpy()
    return classes


def run_one(bench: Bench, job: Job, classes: Sequence[str], progress: Progress) -> Run:
    """Run a method over the stream and write its record."""
    adapter = Adapter(bench.model, bench.with_source(job.method), seed=job.seed)
    predictions = None if adapter.prior is None else Predictions(adapter)
    stream = bench.protocol.stream(bench.sets, job.seed)
    record = run_stream(adapter, stream, batch_size=bench.protocol.batch_size, progress=progress)
    job = Job(method=adapter.method, seed=job.seed, source=job.method_source)
    save(bench.path(job), record, **bench.identity(job), environment=environment())
    bank = bank_items(adapter.learner.memory(), classes)
    return Run(load(bench.path(job)), bank, None if predictions is None else predictions.timeline(stream))


def run_in_processes(spec: BenchSpec, jobs: Sequence[Job], classes: Sequence[str], workers: int, bar: Bar) -> list[Run]:
    """Run jobs in a pool of processes; the corrupted images are on disk already."""
    spawn = get_context("spawn")
    parcel, queue = packed(spec), spawn.Queue()
    bars = [bar(title(job)) for job in jobs]
    with ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(queue,)) as pool:
        try:
            # Those that are listed last take longest: they begin first.
            order = reversed(range(len(jobs)))
            running = {number: pool.submit(_work, parcel, packed(jobs[number]), classes, number) for number in order}
            going = True
            while going:
                done, left = wait(running.values(), timeout=TICK)
                going = bool(left) and not any(future.exception() for future in done)
                while not queue.empty():
                    number, *progress = queue.get()
                    bars[number](*progress)
            return [running[number].result() for number in range(len(jobs))]
        except BrokenProcessPool as error:
            raise WorkerLost("a worker process died, perhaps out of memory; repeat with --workers 1") from error
        finally:
            pool.shutdown(cancel_futures=True)


def title(job: Job) -> str:
    """What a progress bar says."""
    return f"adapting: {job.method.name}{' + label prior' if job.method.label_prior != 'none' else ''}"


_progress: list[Any] = []
"""In a worker, the queue on which it reports."""


def _begin(queue: Any) -> None:
    end_at_ctrl_c()
    _progress.append(queue)


def _work(spec: bytes, job: bytes, classes: Sequence[str], number: int) -> Run:
    return run_one(
        opened(spec, 1), pickle.loads(job), classes, lambda done, total: _progress[0].put((number, done, total))
    )
