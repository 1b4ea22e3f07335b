"""Low latency: `adapt(model, background=True)` predicts at once and learns in another thread.

Predictions come from a copy of the network, in the caller's thread and stream. A `LearnerThread`, with a stream of its
own, owns the learner; after an update it publishes the teacher's weights through a double buffer.

>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta", background=True)
>>> logits = adapter(torch.rand(64, 3, 8, 8))
>>> adapter.sync()
>>> adapter.stats.updates, adapter.background.dropped
(1, 0)
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from resitta.errors import BadSetting
from resitta.method import AdapterLike, Learner
from resitta.runtime.learn_queue import LearnQueue, Samples, joined
from resitta.runtime.learner_thread import JOIN_SECONDS, LearnerThread
from resitta.runtime.locks import LockRank, defer_signals, new_lock
from resitta.runtime.throttle import Throttle
from resitta.runtime.weight_handoff import PublishedNetwork, mark, weights_of
from resitta.training.network import Network

ROOM = 256
"""How many samples may wait; further batches are dropped. An empty queue takes a batch of any size."""
BATCH = 64
"""How many samples are learned from at once, if callers send smaller batches."""


class Background:
    """Predicts for an adapter whose learner works in a `LearnerThread`. A call never waits for that thread."""

    front: PublishedNetwork

    def __init__(self, adapter: AdapterLike, *, cuda_graphs: bool) -> None:
        self.queue = LearnQueue(room=ROOM, batch=BATCH)
        self.thread = LearnerThread(self.queue, learn=self._learn, failed=self._keep_error)
        self.calls = new_lock(LockRank.CALLS)
        """Guards the network that predicts."""
        self.throttle = Throttle()
        self.error: Exception | None = None
        self._cuda_graphs = cuda_graphs
        self._adapter = weakref.ref(adapter)

    @property
    def dropped(self) -> int:
        """How many samples were predicted but not learned from, because too many were waiting."""
        return self.queue.counters.dropped

    def sync(self) -> None:
        """Wait until everything offered so far has been learned from and published."""
        self.thread.settle()
        with self.calling():
            pass

    def close(self) -> None:
        """Learn from what is waiting, then end the thread: further calls only predict."""
        self.thread.settle()
        self.thread.close(JOIN_SECONDS)

    # --- for calls ----------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Lock the network that predicts and bring it up to date; raise an error of the learner thread, once."""
        with defer_signals(), self.calls, self.throttle.prediction():
            error, self.error = self.error, None
            if error is not None:
                raise error
            self._take()
            yield

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits = self.front.network.predict(images)
        self.throttle.last = mark(logits)
        return logits

    def step(self, images: Tensor, predicted: Tensor | None = None) -> Tensor:
        """Return the logits, and offer copies of both for learning: the caller may overwrite them."""
        logits = self.predict(images) if predicted is None else predicted
        adapter = self._adapter()
        answer = logits if adapter is None else adapter.correct(images, logits)
        kept = images.clone(), (answer if adapter is not None and adapter.method.feedback else logits).clone()
        self.throttle.last = mark(logits)
        self.thread.offer(Samples(*kept, ready=self.throttle.last))
        return answer

    def _take(self) -> None:
        """Copy the newest weights, after the work of other threads with the network on the device."""
        weights = self.front.weights
        if self.throttle.last is not None:
            torch.cuda.current_stream(weights.target[0].device).wait_event(self.throttle.last)
        if weights.take():
            self.throttle.last = mark(weights.target[0])

    # --- for the holder of the adapter's lock -------------------------------------------------------------------------

    def connect(self, adapter: AdapterLike) -> None:
        """Make the network that predicts, for a learner that is new or was converted with `to`."""
        teacher = predictor(adapter.learner, adapter.method.name)
        self.thread.stream = self.throttle.stream = stream_on(teacher.device, self.thread.stream)
        self.throttle.attach(adapter.learner)
        with self.calls:
            self.front = PublishedNetwork(adapter.source, adapter.method.trains, channels_last=teacher.channels_last)
            self.front.network.replay.enabled = self._cuda_graphs
            self.throttle.last = mark(self.front.weights.target[0])
            self.publish(adapter)

    def publish(self, adapter: AdapterLike) -> None:
        """Make the next call predict with the learner's present weights."""
        self.front.weights.put(weights_of(adapter), adapter.learner.updates)
        with self.calls:
            self._take()

    # --- in the learner thread ----------------------------------------------------------------------------------------

    def _learn(self, batch: list[Samples]) -> int:
        """Learn from a batch in the thread's own stream, and publish the result."""
        adapter, stream = self._adapter(), self.thread.stream
        if adapter is None:
            return 0
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            self.throttle.wait_for_predictions()
            images, logits = joined(batch, stream)
            teacher = predictor(adapter.learner, adapter.method.name)
            teacher.channels_last = self.front.network.channels_last  # found out by predicting
            try:
                adapter.learn(images, logits, corrected=logits)  # the label prior has seen them in `step`
            finally:
                if adapter.learner.updates != self.front.weights.newest:
                    self.front.weights.put(weights_of(adapter), adapter.learner.updates)
                if stream is not None:
                    stream.synchronize()
        return len(images)

    def _keep_error(self, error: Exception) -> None:
        """Keep the first error for the next call; learning continues."""
        self.error = self.error or error


def stream_on(device: torch.device, present: torch.cuda.Stream | None) -> torch.cuda.Stream | None:
    """A stream of a CUDA device, the present one if possible; None for other devices."""
    if device.type != "cuda":
        return None
    if present is not None and present.device == device:
        return present
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def predictor(learner: Learner, name: str) -> Network:
    """The network that predicts for a learner; refuse learners that cannot learn from another's predictions."""
    network = learner.exportable_network()
    if network is None or not learner.learns_from_predictions:
        wanted = "a method that predicts with fixed statistics and learns from a memory, such as resitta or rotta"
        raise BadSetting(f"background=True needs {wanted}, found {name!r} with its settings; leave it out or use those")
    return network
