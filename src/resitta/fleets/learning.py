"""Learning on a budget: a call predicts everything, and makes so many updates."""

import logging
from collections.abc import Callable

from torch import Tensor

from resitta.fleets.member import Member, Waiting
from resitta.fleets.roster import Roster

logger = logging.getLogger(__name__)
ROOM = 256
"""How many samples of all streams together may wait; further ones are predicted, but not learned from."""
EACH = 16
"""The same for each stream in memory, if that is more: a quarter of most banks."""


class Learning:
    """Lets streams learn from predicted samples. What may update waits for its turn, and what follows waits behind.

    `only_predicts` tells whether a stream is paused.
    """

    def __init__(self, roster: Roster, only_predicts: Callable[[Member], bool]) -> None:
        self.roster, self.only_predicts = roster, only_predicts
        self.budget = roster.rules.updates_per_call

    def offer(self, member: Member, images: Tensor, logits: Tensor, *, alone: bool = False) -> Tensor:
        """Learn at once unless that may update; return the logits, corrected by the stream's label prior.

        `alone`: no other stream is in the call. Then an update need not wait if no other stream is due.
        """
        if self.only_predicts(member):
            prior = member.here.prior
            return logits if prior is None else prior.peek(logits)
        its_turn = self.budget is None or (alone and not self.roster.turns)
        if not member.waiting and (its_turn or not member.here.learner.may_update(images)):
            answer = member.learn(images, logits)
            self.roster.save_if_due(member)
            return answer
        answer = member.here.correct(images, logits)
        member.waiting.append(Waiting(images, logits, answer if member.here.method.feedback else logits))
        self.roster.turns.join(member.name)
        return answer

    def take_turns(self) -> dict[str, Exception]:
        """Let streams that are due update, as far as the budget goes; return the errors."""
        errors: dict[str, Exception] = {}
        members, turns = self.roster.members, self.roster.turns
        left = self.budget or 0
        while left > 0 and turns:
            member = members[turns.take(lambda name: members[name].drift())]
            if self.only_predicts(member):  # it joins again with its next samples
                continue
            try:
                left -= max(1, member.catch_up())
            except Exception as error:
                errors[member.name] = error
                left -= 1
            if member.waiting:
                turns.join(member.name)
            self.roster.save_if_due(member)
        self._keep_waiting()
        return errors

    def _keep_waiting(self) -> None:
        """Copy the samples that wait on, and drop the newest of the streams with the most, where there are too many."""
        waiting = [member for member in self.roster.present.values() if member.waiting]
        room = max(ROOM, EACH * len(self.roster.present))
        while sum(member.waiting_samples for member in waiting) > room:
            most = max(waiting, key=lambda member: member.waiting_samples)
            if not most.dropped:
                logger.warning("more samples wait than there is room for; raise updates_per_call to learn from all")
            most.dropped += len(most.waiting.pop().images)
        for member in waiting:
            member.own_waiting()
