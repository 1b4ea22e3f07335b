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
    """What became of the predicted samples. The other counters always add up to `offered`.

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

    `logits`: the predictions, None if the learner has to predict. `ready`: the CUDA event after which they can be used.
    `stream`: the client's stream that they belong to, if each stream is learned from by itself.
    """

    images: Tensor
    logits: Tensor | None
    client: str = ""
    ready: torch.cuda.Event | None = None
    stream: str = ""

    def __len__(self) -> int:
        return len(self.images)


class LearnQueue:
    """First in, first out for each client, round robin between clients.

    Any thread may offer samples; a `LearnerThread` takes them. At most `room` samples wait, but an empty queue takes
    any number. Samples that are being learned from need no room. Samples with a `stream` are taken stream by stream:
    clients take turns, and so do the streams of a client.

    >>> queue = LearnQueue(room=4, batch=3)
    >>> queue.offer([Samples(torch.zeros(1, 3, 8, 8), None, client) for client in "aaaab"])
    [True, True, True, True, True]
    >>> [samples.client for samples in queue.take()], queue.counters.dropped, queue.counters.waiting
    (['a', 'b', 'a'], 1, 4)
    """

    def __init__(self, *, room: int, batch: int) -> None:
        self.room = room
        self.batch = min(batch, room)
        self.counters = Counters()
        self.paused = self.closed = False
        self.accepted = 0
        """Samples that were ever queued."""
        self.changed = threading.Condition(new_lock(LockRank.QUEUE))
        """Guards the queue; is notified of the first samples, a full batch, and samples that leave."""
        self._queues: OrderedDict[str, OrderedDict[str, deque[Samples]]] = OrderedDict()  # by client and stream
        self._held: Counter[str] = Counter()  # samples of each client; clients without samples are forgotten

    def __len__(self) -> int:
        return self._held.total()

    @property
    def finished(self) -> int:
        """Accepted samples that neither wait nor are being learned from."""
        return self.accepted - self.counters.waiting

    @property
    def has_batch(self) -> bool:
        """Whether a full batch waits."""
        return len(self) >= self.batch

    def offer(self, offered: Sequence[Samples]) -> list[bool]:
        """Queue samples as far as there is room, and return which were taken. Never waits for the learner.

        In a full queue samples replace the newest ones of the client with the most, unless their own client would then
        have more; in the same way they replace those of another stream of their own client.
        """
        with self.changed:
            before, had_batch = len(self), self.has_batch
            is_open = not (self.paused or self.closed)
            taken = [is_open and self._add(samples) for samples in offered]
            count, more = sum(map(len, offered)), len(self) - before
            self.accepted += sum(map(len, compress(offered, taken)))
            self._count(offered=count, waiting=more, **{"skipped" if self.paused else "dropped": count - more})
            if more and (not before or (self.has_batch and not had_batch)):
                self.changed.notify_all()  # not for every sample: full batches cost the least
        return taken

    def take(self) -> list[Samples]:
        """Take a batch of samples that fit into one tensor, or those of one stream.

        They count as waiting until they are settled.
        """
        taken: list[Samples] = []
        with self.changed:
            while self._queues:
                client, streams = next(iter(self._queues.items()))
                stream, waiting = next(iter(streams.items()))
                if taken and not self._fit(taken, waiting[0]):
                    break
                taken.append(waiting.popleft())
                if not stream:
                    self._queues.move_to_end(client)
                self._forget(taken[-1])
            if taken:
                self._pass_on(taken[0])
        return taken

    def waiting_by_stream(self) -> dict[str, int]:
        """How many samples of each stream wait."""
        with self.changed:
            return {
                stream: sum(map(len, waiting))
                for streams in self._queues.values()
                for stream, waiting in streams.items()
            }

    def settle(self, *, learned: int = 0, skipped: int = 0, screened: int = 0) -> None:
        """Count samples that were taken as done."""
        with self.changed:
            self._count(learned=learned, skipped=skipped, screened=screened, waiting=-learned - skipped - screened)
            self.changed.notify_all()

    def record(self, samples: int, *, screened: int = 0, skipped: int = 0) -> None:
        """Count samples that were predicted and learned from, except for some, without being queued."""
        skipped = samples if self.paused else skipped
        screened = 0 if self.paused else screened
        with self.changed:
            self._count(offered=samples, learned=samples - screened - skipped, screened=screened, skipped=skipped)

    def clear(self, client: str | None = None, stream: str = "") -> None:
        """Skip the samples that wait: all, or those of one stream of a client."""
        with self.changed:
            if client is None:
                self._clear("skipped")
                return
            for samples in self._queues.get(client, OrderedDict()).pop(stream, deque()):
                self._count(skipped=len(samples), waiting=-len(samples))
                self._held[client] -= len(samples)
            self._tidy(client)
            self.changed.notify_all()

    def close(self) -> None:
        """Drop what waits and what is offered from now on."""
        with self.changed:
            self.closed = True
            self._clear("dropped")

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move or convert the waiting samples, after `adapter.to`."""
        with self.changed:
            for streams in self._queues.values():
                for stream, waiting in streams.items():
                    streams[stream] = deque(_converted(samples, fn) for samples in waiting)

    def _add(self, samples: Samples) -> bool:
        if self._held and len(self) + len(samples) > self.room and not self._make_room(samples):
            return False
        streams = self._queues.setdefault(samples.client, OrderedDict())
        streams.setdefault(samples.stream, deque()).append(samples)
        self._held[samples.client] += len(samples)
        return True

    def _make_room(self, samples: Samples) -> bool:
        client, most = max(self._held.items(), key=lambda item: item[1])
        its_own = self._held[samples.client] + len(samples) > most
        streams = self._queues.get(samples.client if its_own else client)
        if streams is None:
            return False
        counts = {stream: sum(map(len, waiting)) for stream, waiting in streams.items()}
        largest = max(counts, key=counts.__getitem__)
        newest = streams[largest][-1]
        fair = not its_own or counts.get(samples.stream, 0) + len(samples) <= counts[largest]
        if not fair or len(samples) > len(newest):
            return False
        self._forget(streams[largest].pop())
        return True

    def _forget(self, gone: Samples) -> None:
        """Note that samples have left."""
        self._held[gone.client] -= len(gone)
        if not self._queues[gone.client][gone.stream]:
            del self._queues[gone.client][gone.stream]
        self._tidy(gone.client)

    def _tidy(self, client: str) -> None:
        if client in self._queues and not self._queues[client]:
            del self._queues[client], self._held[client]

    def _pass_on(self, taken: Samples) -> None:
        """After samples of a stream, it is the turn of the next client, and of that client's next stream."""
        if taken.stream and taken.client in self._queues:
            self._queues.move_to_end(taken.client)
            if taken.stream in self._queues[taken.client]:
                self._queues[taken.client].move_to_end(taken.stream)

    def _fit(self, taken: list[Samples], more: Samples) -> bool:
        first, images = taken[0].images, more.images
        same = images.shape[1:] == first.shape[1:] and images.dtype == first.dtype and more.stream == taken[0].stream
        return same and sum(map(len, taken)) + len(more) <= self.batch

    def _clear(self, became: str) -> None:
        self._count(**{became: len(self), "waiting": -len(self)})
        self._queues.clear()
        self._held.clear()
        self.changed.notify_all()

    def _count(self, **changes: int) -> None:
        now = self.counters
        self.counters = replace(now, **{name: getattr(now, name) + change for name, change in changes.items()})


def joined(batch: Sequence[Samples], stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor | None]:
    """Concatenate the images of a batch, and the logits if all are known, for use in a stream."""
    for samples in batch:
        if stream is not None and samples.ready is not None:
            stream.wait_event(samples.ready)
            for tensor in (samples.images, samples.logits):
                if tensor is not None:
                    tensor.record_stream(stream)
    logits = [samples.logits for samples in batch if samples.logits is not None]
    if len(batch) == 1:  # no copy
        return batch[0].images, batch[0].logits
    images = torch.cat([samples.images for samples in batch])
    return images, torch.cat(logits) if len(logits) == len(batch) else None


def _converted(samples: Samples, fn: Callable[[Tensor], Tensor]) -> Samples:
    if samples.ready is not None:
        torch.cuda.current_stream(samples.images.device).wait_event(samples.ready)
    logits = None if samples.logits is None else fn(samples.logits)
    return replace(samples, images=fn(samples.images), logits=logits)
