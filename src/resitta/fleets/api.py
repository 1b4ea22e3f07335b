"""`fleet(model, "resitta")`: one adapter for each stream, one forward pass for a batch of many streams."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter, adapt
from resitta.checkpoint.io import StatePath
from resitta.errors import BadImages, BadSetting, StreamFailure
from resitta.fleets.files import StreamFiles, check_name
from resitta.fleets.grouping import grouped
from resitta.fleets.learning import Learning
from resitta.fleets.member import Member
from resitta.fleets.one_pass import MixedSamples, OnePass, fits_one_pass
from resitta.fleets.records import StreamEventHandler, StreamStats
from resitta.fleets.roster import Roster, Rules, Start
from resitta.fleets.stream import Stream
from resitta.inputs import PixelRange, refuse_recording
from resitta.method import Method
from resitta.runtime.locks import defer_signals, new_lock, synchronized
from resitta.runtime.pausing import Pause, Pauses
from resitta.training.network import Network

if TYPE_CHECKING:
    from threading import RLock

logger = logging.getLogger(__name__)


def fleet(
    model: nn.Module,
    method: str | Method = "resitta",
    *,
    folder: StatePath | None = None,
    max_streams: int = 1000,
    updates_per_call: int | None = 2,
    autosave: int | None = 640,
    start: Start = "source",
    **options: Any,
) -> "Fleet":
    """Adapt one model to many streams at once, each by itself: the cameras of a town, the customers of a service.

    A stream is begun by its first images. It owns what an adapter of its own would own (statistics, affine parameters,
    memory of samples, label prior, guard, random generator) and behaves like one; all share the model's weights. A
    batch that mixes streams is predicted in one forward pass, if the method learns from its predictions and trains
    nothing but BatchNorm layers ("tide", "resitta", "rotta", "tribe"); with other methods, in one pass for each stream.

    Args:
        model: as `adapt` takes it, on the device where it stays.
        method: as `adapt` takes it, but the default is the paper's.
        folder: where streams are kept: those that there is no room for in memory, and every `autosave` samples each.
            A fleet continues with the streams that it finds there. Needs the extra `state`.
        max_streams: how many streams stay in memory; those used least recently go to the folder and come back.
        updates_per_call: how many updates a call may make after it has predicted. Further streams that are due wait
            for the next call; the most drifted one and the one that waits longest take turns. None: no bound. A batch
            of 64 makes one update due on average if streams update every 64 samples, so 2 keep up with twice that;
            "tide" and "tribe" update with every batch and want more where batches mix many streams, as `dropped` tells.
        autosave: save a stream after this many of its samples, if there is a folder; None: only when it leaves memory,
            at `save` and at `close`.
        start: "source", or "nearest": a new stream begins with the networks of the stream in memory whose images look
            most like its first batch, if they look like one domain, and otherwise with the source.
        options: all other arguments of `adapt`, such as `guard=True` or settings of the method; not `background`,
            `group` and `shadow`.

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
    if options.get("shadow") is not None:
        raise BadSetting("a fleet predicts many streams in one pass, which no shadow watches; leave out shadow=")
    rules = Rules(max_streams=max_streams, updates_per_call=updates_per_call, autosave=autosave, start=start)
    lock = new_lock()  # made before those of the adapters, as it is taken before them
    graphs = options.pop("cuda_graphs", True)
    template = adapt(model, method, cuda_graphs=False, **options)  # each stream's recordings would take memory
    return Fleet(template, rules, lock=lock, folder=folder, cuda_graphs=graphs)


class Fleet:
    """Many adapters on one model, by the name of their stream. Make one with `resitta.fleet`.

    Threads may share it, as they may share an adapter.
    """

    def __init__(
        self, template: Adapter, rules: Rules, *, lock: "RLock", folder: StatePath | None, cuda_graphs: bool
    ) -> None:
        self.template, self.rules, self.lock, self.pauses = template, rules, lock, Pauses()
        self.files = None if folder is None else StreamFiles(Path(folder))
        self.roster = Roster(template, rules, self.files)
        self.learning = Learning(self.roster, self.only_predicts)
        self._pauses: WeakValueDictionary[str, Pauses] = WeakValueDictionary()  # of streams that someone holds
        self.one_pass: OnePass | None = None
        like = template.learner.exportable_network()
        if like is not None and fits_one_pass(template.learner):
            with torch.inference_mode(False):
                self.one_pass = OnePass(self.source, like, cuda_graphs=cuda_graphs)

    @property
    def source(self) -> Network:
        """The caller's network, whose weights all streams share."""
        return self.template.source

    # --- predictions --------------------------------------------------------------------------------------------------

    def __call__(self, images: Any, streams: str | Sequence[str]) -> Tensor:
        """Return the logits of a batch, and learn from each image as the stream it belongs to.

        `images` are what an adapter takes. `streams` names the stream of each image, in its order, or the one of all.
        Bad input changes nothing.
        """
        refuse_recording()
        with defer_signals(), self.lock, torch.inference_mode(False), torch.enable_grad():
            images, pixels = self.template.checked(images)
            order, parts = grouped(streams, len(images))
            images = images[order] if len(parts) > 1 else images
            finite = self._check_pixels(pixels, images, parts)
            finite = finite if finite is None else finite[order]
            self.roster.check_room(parts)
            new = [name for name in parts if name not in self.roster.members]
            try:
                members = {name: self.roster.enter(name, among=parts) for name in parts}
                if self.rules.start == "nearest" and not self.pauses:
                    for name, part in parts.items():
                        self.roster.begin(members[name], self.source.pixels(images[part]))
                logits, errors = self._answer(images, members, parts, finite)
            except BaseException:
                self.roster.forget_unused(new)
                raise
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
                with member.here.paused() if self.only_predicts(member) else nullcontext():
                    answers[name] = member.here(some)
            except Exception as error:
                errors[name] = error
                with member.here.paused():
                    answers[name] = member.here(some)
            self.roster.save_if_due(member)
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
                answer = self.learning.offer(member, some, predicted, alone=len(parts) == 1)
            except Exception as error:
                errors[name] = error
                continue
            if answer is not predicted:
                answers = answers.clone() if answers is logits else answers
                answers[part][slice(None) if usable is None else usable] = answer
        errors.update(self.learning.take_turns())
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

    def only_predicts(self, member: Member) -> bool:
        """Whether a stream, or the whole fleet, is paused."""
        return any((self.pauses, self._pauses.get(member.name), member.here.pauses))

    # --- learning, memory and disk ------------------------------------------------------------------------------------

    @synchronized
    def sync(self) -> None:
        """Learn from all samples that wait, whatever time it takes."""
        for member in self.roster.present.values():
            self.roster.settle(member)

    @synchronized
    def catch_up(self) -> None:
        """Make as many updates as a call may, where streams are due: for times in which no images come."""
        if errors := self.learning.take_turns():
            raise StreamFailure(errors, None)

    @synchronized
    def save(self) -> None:
        """Learn what waits, and save every stream that has changed."""
        if self.files is None:
            raise BadSetting("the fleet has no folder to save to; pass folder=, or save fleet[name] to a file")
        self.sync()
        for member in self.roster.present.values():
            self.roster.save(member)

    @synchronized
    def remove(self, name: str) -> None:
        """Forget a stream, in memory and in the folder."""
        self.roster.remove(name)

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
        return Stream(self, name, self._pauses.setdefault(check_name(name), Pauses()))

    def __contains__(self, name: object) -> bool:
        return name in self.roster.members

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.roster.members))

    def __len__(self) -> int:
        return len(self.roster.members)

    @property
    @synchronized
    def stats(self) -> dict[str, StreamStats]:
        """A row of numbers for each stream, in memory or in the folder."""
        return {name: m.last if m.adapter is None else m.stats() for name, m in self.roster.members.items()}

    @synchronized
    def listen(self, handler: StreamEventHandler) -> None:
        """Call a function with a `StreamEvent` for each event of every stream."""
        self.roster.listen(handler)

    def paused(self) -> Pause[Self]:
        """Predict without learning inside the `with` block."""
        return Pause(self)

    def __repr__(self) -> str:
        count = f"{len(self.roster.members)} streams, {len(self.roster.present)} in memory"
        return f"<fleet of {count}, method={self.template.method!r}>"
