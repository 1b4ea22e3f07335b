"""Low latency: `adapt(model, background=True)` predicts at once and learns beside the next predictions.

Predictions come from a network of their own, the front, in the caller's thread and stream. A worker, with its own
thread and stream, owns the learner; after an update it puts the teacher on a shelf, from which the next call takes it
as a whole, so that no prediction ever sees half an update.

>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta", background=True)
>>> logits = adapter(torch.rand(64, 3, 8, 8))
>>> adapter.sync()
>>> adapter.stats.updates, adapter.background.dropped
(1, 0)
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from resitta.errors import BadSetting
from resitta.method import AdapterLike, Learner
from resitta.norm.bn_layers import bn_layers
from resitta.runtime.learner_thread import Batch, Worker
from resitta.runtime.locks import LockRank, defer_signals, new_lock
from resitta.runtime.throttle import Throttle
from resitta.runtime.weight_handoff import WeightHandoff, mark
from resitta.training.network import Network


class Background:
    """The front that predicts, the worker that learns, and the shelf between them.

    Several locks are taken in the order of their `LockRank`: the worker (the adapter's lock), `calls`, the short ones
    inside worker and hand-off. A call never waits for the worker.
    """

    front: Network
    shelf: WeightHandoff

    def __init__(self, adapter: AdapterLike) -> None:
        self.worker = Worker(adapter)
        self.calls = new_lock(LockRank.CALLS)
        self.pace = Throttle()
        self.published = 0
        self.error: Exception | None = None

    @property
    def dropped(self) -> int:
        """How many samples were predicted but not learned from, because too many were waiting."""
        return self.worker.dropped

    def sync(self) -> None:
        """Wait until everything offered so far has been learned from, and predict with what came of it."""
        self.worker.settle()
        with self.calling():
            pass

    def close(self) -> None:
        """Learn from what is waiting, then end the worker: further calls only predict."""
        self.worker.settle()
        self.worker.end()

    # --- for calls ----------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Have the front for oneself, as new as it can be without waiting; report what went wrong in the worker."""
        with defer_signals(), self.calls, self.pace.prediction():
            error, self.error = self.error, None
            if error is not None:
                raise error
            self._take()
            yield

    def predict(self, images: Tensor) -> Tensor:
        """Return the front's logits."""
        logits = self.front.predict(images)
        self.pace.last = mark(logits)
        return logits

    def step(self, images: Tensor, predicted: Tensor | None = None) -> Tensor:
        """Return the front's logits, and offer copies of all to the worker: the caller may overwrite both."""
        logits = self.predict(images) if predicted is None else predicted
        kept = images.clone(), logits.clone()
        self.pace.last = mark(logits)
        self.worker.offer(Batch(*kept, self.pace.last))
        return logits

    def _take(self) -> None:
        """Bring the front up to date, after what other threads may still be doing with it on the device."""
        if self.pace.last is not None:
            torch.cuda.current_stream(self.shelf.target[0].device).wait_event(self.pace.last)
        if self.shelf.take():
            self.pace.last = mark(self.shelf.target[0])

    # --- for whoever has the turn -------------------------------------------------------------------------------------

    def connect(self, adapter: AdapterLike) -> None:
        """Make a front for a learner that is new, or was moved to another device or precision."""
        teacher = predictor(adapter.learner, adapter.method.name)
        self.worker.stream = self.pace.stream = stream_on(teacher.device, self.worker.stream)
        self.pace.slow(adapter.learner)
        with self.calls, torch.inference_mode(False):
            front = adapter.source.fork(adapter.method.trains, channels_last=teacher.channels_last)
            front.replay.enabled = adapter.options.cuda_graphs
            self.front = front.requires_grad_(False)
            self.shelf = WeightHandoff(learned(teacher), learned(front))
            self.pace.last = mark(self.shelf.target[0])
            self.republish(adapter.learner)

    def republish(self, learner: Learner) -> None:
        """Let the very next call predict with what the learner has become."""
        self.published = learner.updates
        self.shelf.put()
        with self.calls:
            self._take()

    def learn(self, adapter: AdapterLike, batches: list[Batch]) -> None:
        """Learn from batches in the worker's thread and stream, and put the result on the shelf."""
        stream = self.worker.stream
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                self.pace.step_aside()
                self._learn(adapter, *joined(batches, stream))
        except Exception as error:  # the stream goes on; the next call reports it
            self.error = self.error or error

    def _learn(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> None:
        teacher = predictor(adapter.learner, adapter.method.name)
        teacher.channels_last = self.front.channels_last  # the front, predicting, finds out what it can take
        try:
            adapter.learn(images, logits)
        finally:
            if adapter.learner.updates != self.published:
                self.published = adapter.learner.updates
                self.shelf.put()
            if self.worker.stream is not None:
                self.worker.stream.synchronize()


def stream_on(device: torch.device, present: torch.cuda.Stream | None) -> torch.cuda.Stream | None:
    """A stream of a CUDA device, the present one if it is there; elsewhere there is none.

    >>> stream_on(torch.device("cpu"), None) is None
    True
    """
    if device.type != "cuda":
        return None
    if present is not None and present.device == device:
        return present
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def predictor(learner: Learner, name: str) -> Network:
    """The network that predicts for a learner, if it can learn from predictions that another made."""
    network = learner.exportable_network()
    if network is None or not learner.learns_from_predictions:
        wanted = "a method that predicts with fixed statistics and learns from a memory, such as resitta or rotta"
        raise BadSetting(
            f"background=True needs {wanted}, found {name!r} with its settings; leave it out, or use those"
        )
    return network


def learned(network: Network) -> list[Tensor]:
    """All that learning changes in a network, in the same order however its layers are wrapped.

    >>> front = Network(torch.nn.BatchNorm2d(3)).fork("affine")
    >>> [tensor.tolist() for tensor in learned(front)]  # weight, bias, mean, variance
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    statistics = [tensor for _, layer in bn_layers(network.model) for tensor in (layer.running_mean, layer.running_var)]
    return [*network.parameters(), *(tensor for tensor in statistics if tensor is not None)]


def joined(batches: list[Batch], stream: torch.cuda.Stream | None) -> tuple[Tensor, Tensor]:
    """All images and all logits of batches, once they are there on the device.

    >>> one = Batch(torch.zeros(1, 3, 8, 8), torch.zeros(1, 5), None)
    >>> images, logits = joined([one, one], None)
    >>> len(images), logits.shape
    (2, torch.Size([2, 5]))
    """
    for batch in batches:
        if stream is not None and batch.ready is not None:
            stream.wait_event(batch.ready)
            batch.images.record_stream(stream)
            batch.logits.record_stream(stream)
    if len(batches) == 1:
        return batches[0].images, batches[0].logits
    return torch.cat([batch.images for batch in batches]), torch.cat([batch.logits for batch in batches])
