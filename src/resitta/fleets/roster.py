"""Which streams a fleet knows, which of them are in memory, and what of them is on disk."""

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from resitta.adapter import Adapter
from resitta.errors import BadSetting, NotSaved
from resitta.fleets.files import StreamFiles, check_name
from resitta.fleets.member import Member
from resitta.fleets.nearest import Appearance, copy_networks, nearest
from resitta.fleets.records import StreamEvent, StreamEventHandler
from resitta.fleets.turns import Turns
from resitta.monitor.events import Event, Listener
from resitta.settings import check_settings, setting

logger = logging.getLogger(__name__)
Start = Literal["source", "nearest"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The arguments of `fleet` that are its own, checked."""

    max_streams: int = setting(1000, at_least=1)
    updates_per_call: int | None = setting(2, at_least=1)
    autosave: int | None = setting(640, at_least=1)
    start: Start = setting("source")

    def __post_init__(self) -> None:
        check_settings(self)


class Roster:
    """The streams, and who of them is due. `template` is an adapter that never learns; streams begin as its siblings.

    `present` has those in memory, the one used least recently first.
    """

    def __init__(self, template: Adapter, rules: Rules, files: StreamFiles | None) -> None:
        self.template, self.rules, self.files = template, rules, files
        saved: Iterable[str] = () if files is None else files.names()
        self.members = {name: Member(name, saved=True) for name in saved}
        self.present: OrderedDict[str, Member] = OrderedDict()
        self.turns = Turns()
        self._places = list(range(rules.max_streams))[::-1]
        self._handlers: list[StreamEventHandler] = []

    def enter(self, name: str, among: Collection[str] = ()) -> Member:
        """Bring a stream into memory, in the place of the one used least recently but for those `among`."""
        member = self.members.get(check_name(name)) or Member(name)
        if member.adapter is None:
            while len(self.present) >= self.rules.max_streams:
                self._put_away(next(other for other in self.present.values() if other.name not in among))
            adapter = self.template.sibling()
            if member.saved and self.files is not None:
                member.appearance = Appearance.of(self.files.restore(name, adapter))
            member.enter(adapter, self._places.pop())
            self.members[name] = self.present[name] = member
            for handler in self._handlers:
                attach(handler, member)
        self.present.move_to_end(name)
        return member

    def check_room(self, names: Collection[str]) -> None:
        """Refuse streams that there is no room for, before any of them enters."""
        if len(names) > self.rules.max_streams:
            found = f"the batch holds images of {len(names)} streams, max_streams is {self.rules.max_streams}"
            raise BadSetting(f"{found}; pass fewer at once, or a higher max_streams")
        total = len(self.present.keys() | set(names))
        if self.files is None and total > self.rules.max_streams:
            found = (
                f"{total} streams would be in memory, max_streams is {self.rules.max_streams}, and none can leave it"
            )
            raise BadSetting(f"{found}; pass folder=, a higher max_streams=, or call fleet.remove(name)")

    def forget_unused(self, names: Iterable[str]) -> None:
        """Forget streams that a call has begun and not learned from."""
        for name in names:
            member = self.members.get(name)
            if member is not None and member.adapter is not None and not member.here.samples and not member.waiting:
                self.remove(name)

    def _put_away(self, member: Member) -> None:
        """Write a stream to the folder and take it out of memory."""
        if self.files is None:
            self.check_room([*self.present, ""])
        try:
            self.settle(member)
        except Exception:
            logger.exception("stream %r failed to learn what had waited; its state is as before", member.name)
        self.save(member)
        self._places.append(member.leave())
        del self.present[member.name]

    def begin(self, member: Member, pixels: Tensor) -> None:
        """Note how a stream looks; a new one starts with the networks of a stream that has learned and looks alike."""
        if not member.here.samples and not member.appearance.seen:
            learned = [other for other in self.present.values() if other.here.learner.updates]
            found = nearest(Appearance().add(pixels), {other.name: other.appearance for other in learned})
            if found is not None:
                logger.info("stream %r starts with the networks of %r, which looks alike", member.name, found)
                copy_networks(self.present[found].here.learner, member.here.learner)
                member.has_moved()
        member.appearance = member.appearance.add(pixels)

    def settle(self, member: Member) -> None:
        """Learn from all samples of a stream that wait."""
        self.turns.leave(member.name)
        member.settle()

    def save(self, member: Member) -> None:
        """Write a stream to the folder if it differs from what is there."""
        if self.files is not None and member.changed:
            member.saved_samples = member.here.samples
            self.files.save(member.name, member.here, member.appearance.state())
            member.saved, member.changed = True, False

    def save_if_due(self, member: Member) -> None:
        """Autosave; one that fails is tried again after as many samples."""
        further = abs(member.here.samples - member.saved_samples)  # after a reset there are fewer
        if self.files is not None and self.rules.autosave is not None and further >= self.rules.autosave:
            try:
                self.save(member)
            except NotSaved as error:
                logger.error("autosave of stream %r failed, the stream continues: %s", member.name, error)

    def remove(self, name: str) -> None:
        """Forget a stream, in memory and in the folder."""
        if self.files is not None:
            self.files.remove(check_name(name))
        member = self.members.pop(check_name(name), None)
        self.turns.leave(name)
        if member is not None and self.present.pop(name, None) is not None:
            self._places.append(member.leave())

    def listen(self, handler: StreamEventHandler) -> None:
        """Report every event of every stream."""
        self._handlers.append(handler)
        for member in self.present.values():
            attach(handler, member)


def attach(handler: StreamEventHandler, member: Member) -> None:
    """Report the events of a stream from now on, with its name."""

    def report(event: Event) -> None:
        handler(StreamEvent(stream=member.name, event=event))

    listener, memory = Listener(report), member.here.learner.memory()
    listener.updates, listener.clock = member.here.learner.updates, 0 if memory is None else memory.clock
    member.here.add_callback(listener)
