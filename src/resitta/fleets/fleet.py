"""`fleet(model, "resitta")`: one adapter for each stream, one forward pass for a batch of many streams."""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter, adapt
from resitta.checkpoint.io import StatePath
from resitta.errors import BadImages, BadSetting, NotSaved, StreamFailure
from resitta.fleets.files import StreamFiles, check_name
from resitta.fleets.member import Member, Waiting
from resitta.fleets.nearest import Appearance, copy_networks, nearest
from resitta.fleets.one_pass import MixedSamples, OnePass, fits_one_pass
from resitta.fleets.records import StreamEvent, StreamEventHandler, StreamStats
from resitta.fleets.stream import Stream
from resitta.fleets.turns import Turns
from resitta.inputs import PixelRange, check_form, checked, refuse_recording
from resitta.method import Method
from resitta.monitor.events import Event, Listener
from resitta.runtime.locks import defer_signals, new_lock, synchronized
from resitta.runtime.pausing import Pause, Pauses
from resitta.settings import check_settings, setting
from resitta.training.network import Network

if TYPE_CHECKING:
    from threading import RLock

logger = logging.getLogger(__name__)
Start = Literal["source", "nearest"]
ROOM = 256
"""How many samples of all streams together may wait; further ones are predicted, but not learned from."""


def fleet(
    model: nn.Module,
    method: str | Method = "resitta",
    *,
    folder: StatePath | None = None,
    max_streams: int = 1000,
    updates_per_call: int | None = 2,
    autosave: int | None = 10,
    start: Start = "source",
    **options: Any,
) -> "Fleet":
    """Adapt one model to many streams at once, each by itself: the cameras of a town, the customers of a service.

    A stream is begun by its first images. It owns what an adapter of its own would own (statistics, affine parameters,
    memory of samples, label prior, guard, random generator) and behaves like one; all share the model's weights. A
    batch that mixes streams is predicted in one forward pass, if the method learns from its predictions and trains
    nothing but BatchNorm layers ("resitta", "rotta", "tribe"); with other methods, in one pass for each stream.

    Args:
        model: as `adapt` takes it, on the device where it stays.
        method: as `adapt` takes it.
        folder: where streams are kept: those that there is no room for in memory, and every `autosave` updates each.
            A fleet continues with the streams that it finds there. Needs the extra `state`.
        max_streams: how many streams stay in memory; those used least recently go to the folder and come back.
        updates_per_call: how many updates a call may make after it has predicted. Further streams that are due wait
            for the next call; the most drifted one and the one that waits longest take turns. None: no bound. A batch
            of 64 makes one update due on average if streams update every 64 samples, so 2 keep up with twice that.
        autosave: save a stream after this many of its updates, if there is a folder; None: only when it leaves memory,
            at `save` and at `close`.
        start: "source", or "nearest": a new stream begins with the networks of the stream in memory whose images look
            most like its first batch, if they look like one domain, and otherwise with the source.
        options: all other arguments of `adapt`, such as `guard=True` or settings of the method; not `background` and
            `group`.

    >>> import torch, resitta
    >>> from resitta.conformance import tiny_network
    >>> fleet = resitta.fleet(tiny_network(), "resitta")
    >>> logits = fleet(torch.rand(3, 3, 8, 8), streams=["gate", "yard", "gate"])
    >>> logits.shape, {name: row.samples for name, row in fleet.stats.items()}
    (torch.Size([3, 5]), {'gate': 2, 'yard': 1})
    >>> fleet["yard"](torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """
    for name in ("background", "group"):
        if options.get(name):
            raise BadSetting(f"the streams of a fleet learn in its calls and by themselves; leave out {name}=")
    rules = Rules(max_streams=max_streams, updates_per_call=updates_per_call, autosave=autosave, start=start)
    lock = new_lock()  # made before those of the adapters, as it is taken before them
    graphs = options.pop("cuda_graphs", True)
    template = adapt(model, method, cuda_graphs=False, **options)  # each stream's recordings would take memory
    return Fleet(template, rules, lock=lock, folder=folder, cuda_graphs=graphs)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The arguments of `fleet` that are its own, checked."""

    max_streams: int = setting(1000, at_least=1)
    updates_per_call: int | None = setting(2, at_least=1)
    autosave: int | None = setting(10, at_least=1)
    start: Start = setting("source")

    def __post_init__(self) -> None:
        check_settings(self)


class Fleet:
    """Many adapters on one model, by the name of their stream. Make one with `resitta.fleet`.

    Threads may share it, as they may share an adapter.
    """

    def __init__(
        self, template: Adapter, rules: "Rules", *, lock: "RLock", folder: StatePath | None, cuda_graphs: bool
    ) -> None:
        self.template, self.rules, self.lock, self.pauses = template, rules, lock, Pauses()
        self.files = None if folder is None else StreamFiles(Path(folder))
        saved = () if self.files is None else self.files.names()
        self._members = {name: Member(name, saved=True) for name in saved}
        self._present: OrderedDict[str, Member] = OrderedDict()
        self._places = list(range(rules.max_streams))[::-1]
        self._turns = Turns()
        self._pausing: defaultdict[str, Pauses] = defaultdict(Pauses)
        self._handlers: list[StreamEventHandler] = []
        self.one_pass: OnePass | None = None
        if fits_one_pass(template.learner):
            like = template.learner.exportable_network()
            assert like is not None  # it fits
            with torch.inference_mode(False):
                self.one_pass = OnePass(self.source, like, cuda_graphs=cuda_graphs)

    @property
    def source(self) -> Network:
        """The caller's network, whose weights all streams share."""
        return self.template.source

    # --- predictions --------------------------------------------------------------------------------------------------

    def __call__(self, images: Tensor, streams: str | Sequence[str]) -> Tensor:
        """Return the logits of a batch, and learn from each image as the stream it belongs to.

        `streams` names the stream of each image, in its order, or the one of all. Bad input changes nothing.
        """
        refuse_recording()
        with defer_signals(), self.lock, torch.inference_mode(False), torch.enable_grad():
            check_form(images, self.source)
            order, parts = grouped(streams, len(images))
            images, pixels = checked(images[order] if len(parts) > 1 else images, self.source)
            finite = self._check_pixels(pixels, images, parts)
            if len(parts) > self.rules.max_streams:
                found = f"the batch holds images of {len(parts)} streams, max_streams is {self.rules.max_streams}"
                raise BadSetting(f"{found}; pass fewer at once, or a higher max_streams")
            members = {name: self.enter(name, among=parts) for name in parts}
            self._begin_near(members, images, parts)
            logits, errors = self._answer(images, members, parts, finite)
            answers = torch.empty_like(logits).index_copy_(0, order.to(logits.device), logits)
            if errors:
                raise StreamFailure(errors, answers)
            return answers

    def _check_pixels(self, pixels: PixelRange, images: Tensor, parts: dict[str, slice]) -> Tensor | None:
        """Return which images are finite, None if all are; refuse bad ones with the name of their stream."""
        non_finite = self.template.options.non_finite
        try:
            return pixels.check(non_finite)
        except BadImages:
            for name, part in parts.items():
                try:
                    PixelRange(images[part], self.source).check(non_finite)
                except BadImages as error:
                    raise type(error)(f"stream {name!r}: {error}; the other streams' images were not used") from error
            raise

    def _answer(
        self, images: Tensor, members: dict[str, Member], parts: dict[str, slice], finite: Tensor | None
    ) -> tuple[Tensor, dict[str, Exception]]:
        """Predict, in one pass where that is possible, and learn; errors of one stream do not concern the others."""
        if self.one_pass is not None:
            repaired = images if finite is None else images.nan_to_num(nan=0.0, posinf=1.0, neginf=0.0)
            try:
                return self._in_one_pass(repaired, members, parts, finite)
            except MixedSamples:
                logger.warning("the model mixes the images of a batch: each stream is predicted in a pass of its own")
                self.one_pass = None
        answers, errors = {}, {}
        for name, part in parts.items():
            member, some = members[name], images[part]
            try:
                with member.here.paused() if self._is_paused(member) else nullcontext():
                    answers[name] = member.here(some)
            except Exception as error:
                errors[name] = error
                with member.here.paused():
                    answers[name] = member.here(some)
            self._save_if_due(member)
        return torch.cat([answers[name] for name in parts]), errors

    def _in_one_pass(
        self, images: Tensor, members: dict[str, Member], parts: dict[str, slice], finite: Tensor | None
    ) -> tuple[Tensor, dict[str, Exception]]:
        logits = self._predict(images, members, parts)
        answers, errors = logits, dict[str, Exception]()
        for name, part in parts.items():
            member = members[name]
            usable = None if finite is None else finite[part]
            if usable is not None and not usable.any():
                continue
            some, predicted = images[part], logits[part]
            if usable is not None:
                some, predicted = some[usable], predicted[usable]
            try:
                answer = self._learn(member, some, predicted)
            except Exception as error:
                errors[name] = error
                continue
            if answer is not predicted:
                answers = answers.clone() if answers is logits else answers
                answers[part][slice(None) if usable is None else usable] = answer
        errors.update(self._take_turns())
        return answers, errors

    def _predict(self, images: Tensor, members: dict[str, Member], parts: dict[str, slice]) -> Tensor:
        """Predict a batch; of one stream, as its adapter does."""
        assert self.one_pass is not None  # the caller looked
        if len(members) == 1:
            member = next(iter(members.values()))
            return member.here.learner.predict(images).detach()
        for member in members.values():
            if (network := member.read_network()) is not None:
                self.one_pass.put(member.place, network)
        places = [members[name].place for name, part in parts.items() for _ in range(part.start, part.stop)]
        logits = self.one_pass.predict(images, places)
        for member in members.values():
            if (network := member.here.learner.exportable_network()) is not None:
                network.channels_last = self.one_pass.network.channels_last  # it found out which layout works
        return logits

    # --- learning -----------------------------------------------------------------------------------------------------

    def _is_paused(self, member: Member) -> bool:
        return any((self.pauses, self._pausing.get(member.name), member.here.pauses))

    def _learn(self, member: Member, images: Tensor, logits: Tensor) -> Tensor:
        """Learn from predicted samples at once unless that may update; return the logits, corrected by the prior."""
        adapter = member.here
        if self._is_paused(member):
            return logits if adapter.prior is None else adapter.prior.peek(logits)
        may_update = bool(member.waiting) or adapter.learner.may_update(images)
        if not may_update or self.rules.updates_per_call is None:
            answer = member.learn(images, logits)
            self._save_if_due(member)
            return answer
        answer = logits if adapter.prior is None else adapter.prior(logits)
        member.waiting.append(Waiting(images, answer if adapter.method.feedback else logits))
        self._turns.join(member.name)
        return answer

    def _take_turns(self) -> dict[str, Exception]:
        """Let streams that are due update, as far as a call may; copy what waits on. Return the errors."""
        errors: dict[str, Exception] = {}
        left = self.rules.updates_per_call or 0
        while left > 0 and self._turns and not self.pauses:
            member = self._members[self._turns.take(lambda name: self._members[name].drift())]
            if self._is_paused(member):  # it joins again with its next samples
                continue
            try:
                left -= max(1, member.catch_up())
            except Exception as error:
                errors[member.name] = error
                left -= 1
            if member.waiting:
                self._turns.join(member.name)
            self._save_if_due(member)
        self._keep_waiting()
        return errors

    def _keep_waiting(self) -> None:
        """Copy the samples that wait on, and drop the newest of the streams with the most, where there are too many."""
        waiting = [member for member in self._present.values() if member.waiting]
        while sum(member.waiting_samples for member in waiting) > ROOM:
            most = max(waiting, key=lambda member: member.waiting_samples)
            most.dropped += len(most.waiting.pop().images)
        for member in waiting:
            member.own_waiting()

    @synchronized
    def sync(self) -> None:
        """Learn from all samples that wait, whatever time it takes."""
        for member in list(self._present.values()):
            self._settle(member)

    def _settle(self, member: Member) -> None:
        self._turns.leave(member.name)
        member.settle()

    # --- memory and disk ----------------------------------------------------------------------------------------------

    def enter(self, name: str, among: Collection[str] = ()) -> Member:
        """Bring a stream into memory, in the place of the one used least recently but for those `among`."""
        member = self._members.get(check_name(name)) or Member(name)
        if member.adapter is None:
            while len(self._present) >= self.rules.max_streams:
                self._put_away(next(other for other in self._present.values() if other.name not in among))
            adapter = self.template.sibling()
            if member.saved and self.files is not None:
                member.appearance = Appearance.of(self.files.restore(name, adapter))
            member.enter(adapter, self._places.pop())
            self._members[name] = self._present[name] = member
            for handler in self._handlers:
                self._attach(member, handler)
        self._present.move_to_end(name)
        return member

    def _put_away(self, member: Member) -> None:
        """Write a stream to the folder and take it out of memory."""
        if self.files is None:
            found = f"{len(self._present)} streams are in memory, as many as max_streams allows, and none can leave it"
            raise BadSetting(f"{found}; pass folder=, a higher max_streams=, or call fleet.remove(name)")
        try:
            self._settle(member)
        except Exception:
            logger.exception("stream %r failed to learn what had waited; its state is as before", member.name)
        self._save(member)
        self._places.append(member.leave())
        del self._present[member.name]

    def _begin_near(self, members: dict[str, Member], images: Tensor, parts: dict[str, slice]) -> None:
        """With `start="nearest"`, note how streams look, and let new ones begin where the nearest one is."""
        if self.rules.start != "nearest" or self.pauses:
            return
        for name, part in parts.items():
            member, pixels = members[name], self.source.pixels(images[part])
            if not member.here.samples and not member.appearance.seen:
                known = {other.name: other.appearance for other in self._present.values() if other is not member}
                if (found := nearest(Appearance().add(pixels), known)) is not None:
                    logger.info("stream %r begins with the networks of %r, which looks alike", name, found)
                    copy_networks(self._present[found].here.learner, member.here.learner)
                    member.has_moved()
            member.appearance = member.appearance.add(pixels)

    @synchronized
    def save(self) -> None:
        """Learn what waits, and save every stream that has changed."""
        if self.files is None:
            raise BadSetting("the fleet has no folder to save to; pass folder=, or save fleet[name] to a file")
        self.sync()
        for member in self._present.values():
            self._save(member)

    def _save(self, member: Member) -> None:
        """Write a stream to the folder if it differs from what is there."""
        if self.files is not None and member.changed:
            member.saved_updates = member.here.learner.updates
            self.files.save(member.name, member.here, member.appearance.state())
            member.saved, member.changed = True, False

    def _save_if_due(self, member: Member) -> None:
        """Autosave; one that fails is tried again after as many updates."""
        further = abs(member.here.learner.updates - member.saved_updates)  # after a reset there are fewer
        if self.files is not None and self.rules.autosave is not None and further >= self.rules.autosave:
            try:
                self._save(member)
            except NotSaved as error:
                logger.error("autosave of stream %r failed, the stream continues: %s", member.name, error)

    @synchronized
    def remove(self, name: str) -> None:
        """Forget a stream, in memory and in the folder."""
        member = self._members.pop(check_name(name), None)
        self._turns.leave(name)
        if self._present.pop(name, None) is not None and member is not None:
            self._places.append(member.leave())
        if self.files is not None:
            self.files.remove(name)

    def close(self) -> None:
        """Save what has changed, if there is a folder, and release the folder to other writers."""
        if self.files is not None and self.files.claim.held:
            self.save()
            self.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- streams ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Stream:
        """One stream, known or new."""
        return Stream(self, name, self._pausing[check_name(name)])

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    @property
    @synchronized
    def stats(self) -> dict[str, StreamStats]:
        """A row of numbers for each stream, in memory or in the folder."""
        return {name: m.last if m.adapter is None else m.stats() for name, m in self._members.items()}

    @synchronized
    def listen(self, handler: StreamEventHandler) -> None:
        """Call a function with a `StreamEvent` for each event of every stream."""
        self._handlers.append(handler)
        for member in self._present.values():
            self._attach(member, handler)

    def _attach(self, member: Member, handler: StreamEventHandler) -> None:
        def report(event: Event) -> None:
            handler(StreamEvent(stream=member.name, event=event))

        listener, memory = Listener(report), member.here.learner.memory()
        listener.updates, listener.clock = member.here.learner.updates, 0 if memory is None else memory.clock
        member.here.add_callback(listener)

    def paused(self) -> Pause[Self]:
        """Predict without learning inside the `with` block."""
        return Pause(self)

    def __repr__(self) -> str:
        count = f"{len(self._members)} streams, {len(self._present)} in memory"
        return f"<fleet of {count}, method={self.template.method!r}>"


def grouped(streams: str | Sequence[str], count: int) -> tuple[Tensor, dict[str, slice]]:
    """The order that brings images of one stream together, and where in it each stream's images are.

    >>> grouped(["b", "a", "b"], 3)
    (tensor([0, 2, 1]), {'b': slice(0, 2, None), 'a': slice(2, 3, None)})
    """
    names = [streams] * count if isinstance(streams, str) else list(streams)
    if len(names) != count:
        raise BadSetting(f"there are {count} images and {len(names)} names of streams; name the stream of each image")
    places: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        places.setdefault(check_name(name) if name not in places else name, []).append(index)
    parts, order = {}, list[int]()
    for name, found in places.items():
        parts[name] = slice(len(order), len(order) + len(found))
        order += found
    return torch.tensor(order), parts
