"""The writer of a service of many streams: owns the fleet, learns from each stream by itself, and publishes that.

Readers predict mixed batches with the published rows (`StreamFront`), so a prediction waits for no update. Where the
method's predictions need its learners, a batch is predicted and learned from in one step of the fleet instead.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NoReturn, cast

import torch
from torch import Tensor

from resitta.errors import BadSetting, BadState, NotSaved, StreamFailure
from resitta.fleets import Fleet
from resitta.runtime.learn_queue import Samples, joined
from resitta.serve.events import Events, Kind
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Contents, QueueLearner, Report, contents, failure
from resitta.serve.reader import Predicted
from resitta.serve.settings import Limits
from resitta.serve.storage import not_saved
from resitta.serve.stream_front import StreamFront
from resitta.serve.stream_priors import Correct, unchanged
from resitta.serve.stream_rows import StreamRows, owner, share
from resitta.serve.stream_saver import StreamSaver

logger = logging.getLogger(__name__)
TRIED = 3
"""How many saved streams may be unreadable before the folder counts as that of another model."""


class FleetWriter(QueueLearner):
    """Learns from the streams of all clients in turn. Streams that fail to learn are paused; the others go on."""

    def __init__(self, fleet: Fleet, limits: Limits, events: Events, *, size: int) -> None:
        super().__init__(limits, events, lock=fleet.lock)
        self.fleet, self.most = fleet, limits.streams
        self.rows = StreamRows(fleet, self.queue)
        self.saver = StreamSaver(fleet, events, every=limits.save_every)
        at_once = max(limits.batch, limits.max_images)
        self.front = StreamFront.of(fleet.template, size=size, most=max(fleet.rules.max_streams, at_once))
        if self.front is None and fleet.rules.max_streams < at_once:
            found = f"a batch may hold {at_once} streams, max_streams is {fleet.rules.max_streams}"
            raise BadSetting(f"with {fleet.template.method.name} {found}; raise it, or lower batch and max_images")
        self.version = 0
        self._learning = ""
        self._unreadable: set[str] = set()
        self._check_saved()
        fleet.listen(events.on_stream_event)

    # For other threads.

    def close(self) -> None:
        """Finish the step under way, save what has changed, and stop; images still waiting are not learned from."""
        self.thread.close()
        try:
            self.saver.save_all()
        except Exception as error:
            self.saver.failures.add(error)

    def predict(self, images: Tensor, streams: Sequence[str], correct: Correct = unchanged) -> Predicted:
        """Predict each image as its stream and queue it; if predictions need the learners, learn in the same step."""
        source = self.fleet.source
        moved = images.to(source.device, source.dtype)
        if self.front is None:
            return self._submit(partial(self.step, moved, streams)).result()
        known = [name for name in dict.fromkeys(streams) if name in self.fleet and name not in self._unreadable]
        for brought in [self._submit(partial(self._bring, name)) for name in known if self.front.lacks(name)]:
            brought.result()
        logits, version = self.front.predict(moved, streams)
        return logits, version, self._offer(images, logits, streams)

    def report(self) -> Report:
        """Return the state of all streams together, without waiting for the thread."""
        return Report(
            version=self.version,
            paused=self.queue.paused,
            concurrent=self.front is not None,
            counters=self.rows.counters(),
            stats=self.rows.total(),
            events=self.events.newest(),
            failed_saves=self.saver.failures.count,
            guard_fired=self.rows.guard_fired(),
            clients=[],
            muted=frozenset(),
            harmful=frozenset(),
        )

    def _offer(self, images: Tensor, logits: Tensor, streams: Sequence[str]) -> list[bool]:
        """Queue images for learning; those of paused streams are skipped."""
        places = [place for place, name in enumerate(streams) if name not in self.rows.pauses]
        self.queue.record(len(images) - len(places), skipped=len(images) - len(places))
        if not places:
            return [False] * len(images)
        names = [streams[place] for place in places]
        chosen = torch.tensor(places, dtype=torch.long)
        taken = self.offer(images[chosen], logits[chosen.to(logits.device)], list(map(share, names)), names)
        learned = dict(zip(places, taken, strict=True))
        return [learned.get(place, False) for place in range(len(images))]

    # Tasks: all of them run in the thread.

    def step(self, images: Tensor, streams: Sequence[str]) -> Predicted:
        """Predict and learn in one call of the fleet; streams whose file cannot be read are predicted by the source."""
        sound = torch.tensor([self._enter(name) for name in streams])
        learns = [not self.queue.paused and name not in self.rows.pauses for name in streams]
        if sound.all():
            logits = self._call(images, streams)
        else:
            with self.fleet.template.paused() as source:
                logits = source(images)
            if sound.any():
                names = [name for ok, name in zip(sound, streams, strict=True) if ok]
                logits[sound.to(logits.device)] = self._call(images[sound.to(images.device)], names)
        self.queue.record(len(images), skipped=len(images) - sum(learns))
        self._note_old()
        return logits, self.version, learns

    def pause(self, stream: str | None = None) -> None:
        """Stop learning at once, of all streams or of one; predictions continue."""
        self._pause("learning paused") if stream is None else self._stop(stream, f"stream {stream}: learning paused")

    def resume(self, stream: str | None = None) -> None:
        """Learn again: all streams, also those paused by themselves, or one."""
        if stream is None:
            self.rows.pauses.clear()
            self._unreadable.clear()
            self._resume()
        else:
            self.rows.pauses.pop(stream, None)
            self._unreadable.discard(stream)
            self.events.add("resume", f"stream {stream}: learning resumed")

    def reset(self, stream: str | None = None) -> int:
        """Forget all streams or one, in memory and in the folder: they begin anew with their next images."""
        try:
            for name in list(self.fleet) if stream is None else [stream]:
                self._forget(name)
        except OSError as error:
            raise not_saved("the reset failed, streams not reset remain in use", error) from error
        self.events.add("reset", "all streams are reset" if stream is None else f"stream {stream}: reset")
        return self.version

    def snapshot(self, stream: str | None = None) -> int:
        """Save now what has changed: all streams or one."""
        try:
            self.saver.save_all() if stream is None else self.saver.save(stream)
        except Exception as error:
            self.saver.failures.add(error)
            raise not_saved("not all streams could be saved", error) from error
        self.saver.failures.end("streams saved")
        self.events.add("control", "all streams are saved" if stream is None else f"stream {stream}: saved")
        return self.version

    def rollback(self, version: int | None = None) -> NoReturn:
        """Refuse: a stream has one file, which is replaced."""
        advice = "POST /reset?stream=NAME begins one anew; a file put back while the service is stopped is continued"
        raise Refused(409, f"streams keep no versions to go back to; {advice}")

    def bank(self, most: int, stream: str | None = None) -> Contents:
        """Copy the memory of samples of a stream, the youngest first."""
        if stream is None:
            raise Refused(409, "each stream has its own memory; name one: /bank?stream=NAME. GET /streams lists them")
        if not self._enter(stream):
            raise Refused(409, f"the file of stream {stream} cannot be read; see the events")
        return contents(self.fleet[stream].adapter, most)

    # In the thread.

    def _learn(self, batch: list[Samples]) -> int:
        """Learn from images of one stream; return how many."""
        name, source, front = batch[0].stream, self.fleet.source, self.front
        self._learning = name
        if name in self.rows.pauses or not self._enter(name):
            return 0
        images, logits = joined(batch)
        assert front is not None  # otherwise images are not queued
        assert logits is not None  # readers have predicted them
        stream = self.fleet[name]
        if (network := stream.adapter.learner.exportable_network()) is not None:
            network.channels_last = front.channels_last  # which layout works was found out there
        stream.learn_from(images.to(source.device, source.dtype), logits.to(source.device))
        self._moved(name)
        return len(images)

    def _pause_after(self, error: Exception) -> None:
        """Pause a stream that failed to learn; the others go on."""
        name = self._learning
        logger.error("stream %s failed to learn and is paused", name, exc_info=error)
        self._stop(name, failure(f"stream {name}: learning failed and is paused", error), "failure")

    def _tick(self) -> None:
        if self.front is None and not self.queue.paused:
            self._guarded(self.fleet.catch_up)
            self._note_old()
        self.saver.save_due()

    def _note_old(self) -> None:
        """Note the streams that a step of the fleet has changed."""
        for member in list(self.fleet.roster.present.values()):
            if self.rows.is_old(member):
                self._moved(member.name)

    def _call(self, images: Tensor, streams: Sequence[str]) -> Tensor:
        """Predict and learn, unless paused."""
        with self.fleet.paused() if self.queue.paused else nullcontext():
            return cast(Tensor, self._guarded(partial(self.fleet, images, streams)))

    def _guarded(self, step: Callable[[], Tensor | None]) -> object:
        """Take a step of the fleet; streams that fail to learn are paused."""
        try:
            return step()
        except StreamFailure as error:
            for name, reason in error.errors.items():
                self._stop(name, failure(f"stream {name}: learning failed and is paused", reason), "failure")
            return error.logits

    def _enter(self, name: str) -> bool:
        """Bring a stream into memory; return whether that worked."""
        if name in self._unreadable:
            return False
        new = name not in self.fleet
        try:
            self.fleet.roster.enter(name)
        except NotSaved as error:  # of another stream, which would have to make room
            self.saver.failures.add(error)
            return False
        except (BadState, OSError) as error:
            self._unreadable.add(name)
            advice = "it is predicted by the source; put back its file, then resume, or reset the stream"
            self._stop(name, failure(f"stream {name}: {advice}", error), "failure")
            return False
        if new:
            self._forget_surplus()
        return True

    def _bring(self, name: str) -> None:
        """Publish a stream that was saved."""
        if self._enter(name):
            self._moved(name)

    def _moved(self, name: str) -> None:
        """Publish what a stream has learned, and note that it has changed."""
        member = self.fleet.roster.members[name]
        if member.adapter is None:
            return
        if self.front is None:
            self.version += 1
        elif (network := member.read_network()) is not None:
            self.version += 1
            self.front.put(name, network, self.version)
        self.rows.note(member)
        if member.changed:
            self.saver.note(name)

    def _stop(self, name: str, reason: str, kind: Kind = "pause") -> None:
        """Pause one stream."""
        if name in self.fleet:
            self.rows.pause(name)
        self.queue.clear(share(name), name)
        self.events.add(kind, reason)

    def _forget(self, name: str) -> None:
        """Remove a stream, in memory and in the folder."""
        self.fleet.remove(name)
        self._unreadable.discard(name)
        self.rows.forget(name)
        self.queue.clear(share(name), name)
        if self.front is not None:
            self.version += 1
            self.front.put(name, None, self.version)

    def _forget_surplus(self) -> None:
        """A client that invents names loses streams of its own, those that it has not used for longest."""
        present = self.fleet.roster.present
        named = [name for name in (*(name for name in self.fleet if name not in present), *present) if owner(name)]
        if len(named) > self.most:
            [(greedy, _)] = Counter(map(owner, named)).most_common(1)
            try:
                self._forget(next(name for name in named if owner(name) == greedy))
            except OSError as error:  # the folder refuses; the next new stream tries again
                self.saver.failures.add(error)

    def _check_saved(self) -> None:
        """Refuse a folder whose streams belong to another model, method or settings."""
        tried = list(self.fleet)[:TRIED]
        for count, name in enumerate(tried, start=1):
            try:
                self.fleet.roster.enter(name)
                self._moved(name)
                return
            except BadState:
                if count == len(tried):
                    raise
