"""The queue of predicted samples to learn from: bounded, fair between clients, and every sample is accounted for."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch
from torch import Tensor

from resitta.runtime.locks import LockRank, new_lock


@dataclass(frozen=True)
class Counters:
    """Where predicted samples went since the start: the others add up to `offered`, at every moment.

    `dropped`: the queue was full or closed. `skipped`: learning was paused or failed, or the queue was cleared.
    `screened`: they or their client look out-of-distribution. `waiting` includes samples that are being learned from.
    """

    offered: int = 0
    learned: int = 0
    dropped: int = 0
    skipped: int = 0
    screened: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Samples:
    """One or several samples of a client that are queued together.

    `logits`: what was predicted, None if the learner has to predict. `ready`: the event after which they are there on
    the device.
    """

    images: Tensor
    logits: Tensor | None
    client: str = ""
    ready: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self.images)


class FairQueue:
    """First in, first out for each client, round robin between clients.

    >>> queue = FairQueue()
    >>> for client, value in (("a", 1), ("a", 2), ("a", 3), ("b", 4)):
    ...     _ = queue.add(Samples(torch.full((1, 1), value), None, client), room=9)
    >>> [int(samples.images) for samples in queue.take(3)]
    [1, 4, 2]
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        """Samples of each client; only clients with samples are kept."""
        self._queues: OrderedDict[str, deque[Samples]] = OrderedDict()

    def __len__(self) -> int:
        return self.held.total()

    def add(self, samples: Samples, *, room: int) -> bool:
        """Queue samples if there is room, or if they may replace the newest of the client with the most samples.

        They may if their own client does not get more than that one has. An empty queue takes any number.
        """
        if self.held and len(self) + len(samples) > room and not self._make_room(samples):
            return False
        self._queues.setdefault(samples.client, deque()).append(samples)
        self.held[samples.client] += len(samples)
        return True

    def take(self, most: int) -> list[Samples]:
        """Take samples of each client in turn, up to a number or until the next do not fit into one tensor."""
        taken: list[Samples] = []
        while self._queues:
            client, waiting = next(iter(self._queues.items()))
            if taken and not _fit(taken, waiting[0], most):
                break
            taken.append(waiting.popleft())
            self._forget(client, len(taken[-1]))
            if waiting:
                self._queues.move_to_end(client)
        return taken

    def clear(self) -> None:
        """Forget all samples."""
        self._queues.clear()
        self.held.clear()

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move or convert all samples, once they are there on the device."""
        for client, waiting in self._queues.items():
            self._queues[client] = deque(_converted(samples, fn) for samples in waiting)

    def _make_room(self, samples: Samples) -> bool:
        client, most = max(self.held.items(), key=lambda item: item[1])
        if self.held[samples.client] + len(samples) > most or len(samples) > len(self._queues[client][-1]):
            return False
        self._forget(client, len(self._queues[client].pop()))
        return True

    def _forget(self, client: str, count: int) -> None:
        self.held[client] -= count
        if not self._queues[client]:
            del self._queues[client], self.held[client]


class LearnQueue:
    """Any thread may offer samples; a `LearnerThread` takes them. Samples that are being learned from need no room.

    >>> queue = LearnQueue(room=2, batch=64)
    >>> queue.offer([Samples(torch.rand(1, 3, 8, 8), torch.rand(1, 10)) for _ in range(3)])
    [True, True, False]
    >>> len(queue.take()), queue.counters.dropped, queue.counters.waiting
    (2, 1, 2)
    """

    def __init__(self, *, room: int, batch: int) -> None:
        self.room = room
        self.batch = min(batch, room)
        self.counters = Counters()
        self.paused = self.closed = False
        self.accepted = 0
        """Samples that were queued, whatever became of them."""
        self.changed = threading.Condition(new_lock(LockRank.QUEUE))
        """Guards the queue; is notified of the first samples, a full batch, and samples that leave."""
        self._queue = FairQueue()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def finished(self) -> int:
        """How many of the accepted samples neither wait nor are being learned from."""
        return self.accepted - self.counters.waiting

    @property
    def has_batch(self) -> bool:
        """Whether a full batch waits."""
        return len(self._queue) >= self.batch

    def offer(self, offered: Sequence[Samples]) -> list[bool]:
        """Queue samples as far as there is room, and return which were taken. Never waits for the learner."""
        with self.changed:
            before, had_batch = len(self._queue), self.has_batch
            is_open = not (self.paused or self.closed)
            taken = [is_open and self._queue.add(samples, room=self.room) for samples in offered]
            count, more = sum(map(len, offered)), len(self._queue) - before
            self.accepted += sum(map(len, compress(offered, taken)))
            self._count(offered=count, waiting=more, **{"skipped" if self.paused else "dropped": count - more})
            if more and (not before or (self.has_batch and not had_batch)):
                self.changed.notify_all()  # not for every sample: full batches cost the least
        return taken

    def take(self) -> list[Samples]:
        """Take the next batch. It counts as waiting until it is settled."""
        with self.changed:
            return self._queue.take(self.batch)

    def settle(self, *, learned: int = 0, skipped: int = 0, screened: int = 0) -> None:
        """Account for samples that were taken."""
        with self.changed:
            count = learned + skipped + screened
            self._count(learned=learned, skipped=skipped, screened=screened, waiting=-count)
            self.changed.notify_all()

    def record(self, samples: int, screened: int = 0) -> None:
        """Account for samples that were predicted and, but for some, learned from without waiting here."""
        with self.changed:
            became = {"skipped": samples} if self.paused else {"learned": samples - screened, "screened": screened}
            self._count(offered=samples, **became)

    def clear(self) -> None:
        """Skip the samples that wait."""
        with self.changed:
            self._forget("skipped")
            self.changed.notify_all()

    def close(self) -> None:
        """Drop what waits and what is offered from now on."""
        with self.changed:
            self.closed = True
            self._forget("dropped")
            self.changed.notify_all()

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move or convert the samples that wait, as their adapter was."""
        with self.changed:
            self._queue.convert(fn)

    def _forget(self, became: str) -> None:
        count = len(self._queue)
        self._count(**{became: count, "waiting": -count})
        self._queue.clear()

    def _count(self, **changes: int) -> None:
        now = self.counters
        self.counters = replace(now, **{name: getattr(now, name) + change for name, change in changes.items()})


def joined(batch: Sequence[Samples], stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor | None]:
    """All images of a batch, and all logits if all are known, ready for use in a stream.

    >>> one = Samples(torch.zeros(1, 3, 8, 8), torch.zeros(1, 5))
    >>> images, logits = joined([one, one])
    >>> len(images), logits.shape
    (2, torch.Size([2, 5]))
    """
    for samples in batch:
        if stream is not None and samples.ready is not None:
            stream.wait_event(samples.ready)
            for tensor in (samples.images, samples.logits):
                if tensor is not None:
                    tensor.record_stream(stream)
    logits = [samples.logits for samples in batch if samples.logits is not None]
    return _cat([samples.images for samples in batch]), _cat(logits) if len(logits) == len(batch) else None


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _fit(taken: list[Samples], more: Samples, most: int) -> bool:
    first, images = taken[0].images, more.images
    same = images.shape[1:] == first.shape[1:] and images.dtype == first.dtype
    return same and sum(map(len, taken)) + len(more) <= most


def _converted(samples: Samples, fn: Callable[[Tensor], Tensor]) -> Samples:
    if samples.ready is not None:
        torch.cuda.current_stream(samples.images.device).wait_event(samples.ready)
    logits = None if samples.logits is None else fn(samples.logits)
    return replace(samples, images=fn(samples.images), logits=logits)
