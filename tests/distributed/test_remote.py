"""The driver's side of a service on Ray, with actors and a Ray that live in this process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from resitta.distributed.remote import IN_FLIGHT, RayReaders, RayWriter
from resitta.monitor.stats import Stats
from resitta.runtime.learn_queue import Counters
from resitta.serve.events import Events, LogEntry
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Report


class ActorDied(Exception):
    """Stands for Ray's."""


@dataclass
class Actor:
    """Calls are answered at once, unless the actor is dead or silent."""

    answers: dict[str, Callable[..., Any]]
    dead: bool = False
    silent: bool = False
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.calls.append(name)
            return None if self.silent else (lambda: self.answer(name, *arguments))

        return SimpleNamespace(remote=remote)

    def answer(self, name: str, *arguments: Any) -> Any:
        if self.dead:
            raise ActorDied
        return self.answers[name](*arguments)


class FakeRay:
    exceptions = SimpleNamespace(RayError=ActorDied, RayActorError=ActorDied)

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        return reference()

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return [r for r in references if r is not None], [r for r in references if r is None]


def report(writer: str = "first", version: int = 3, muted: str | None = None) -> Report:
    return Report(
        version=version,
        paused=False,
        concurrent=True,
        counters=Counters(offered=5, learned=5),
        stats=Stats(5, 0, 0.0, None, {}),
        events=[LogEntry(2.0, "control", "of the actor")],
        failed_saves=4,
        guard_fired={"unknown": 2},
        clients=[],
        muted=frozenset() if muted is None else frozenset({muted}),
        harmful=frozenset(),
        writer=writer,
        readers={1: version},
    )


def ray_writer(actor: Actor, events: Events | None = None) -> RayWriter:
    return RayWriter(FakeRay(), actor, events or Events(), stop=lambda: None)


def writer_actor() -> Actor:
    return Actor(
        {
            "report": report,
            "offer": lambda images, clients: len(images),
            "do": lambda task, *_: (None, (409, f"{task} is refused")),
        }
    )


def test_images_that_cannot_be_sent_are_counted_as_dropped() -> None:
    actor = writer_actor()
    writer = ray_writer(actor)
    assert writer.offer(torch.rand(2, 3, 4, 4), ["a", "b"]) == [True, True]
    actor.dead = True
    assert writer.offer(torch.rand(2, 3, 4, 4), ["a", "b"]) == [True, True], "they are on their way"
    assert writer.report().counters == Counters(offered=7, dropped=2, learned=5), (
        "the first were not acknowledged any more"
    )
    actor.silent = True
    taken = [writer.offer(torch.rand(1, 3, 4, 4), ["a"]) for _ in range(IN_FLIGHT + 5)]
    assert taken.count([True]) == IN_FLIGHT
    assert writer.report().counters.dropped == 2 + 2 + 5


def test_images_of_clients_that_are_not_learned_from_are_sent_all_the_same() -> None:
    actor = writer_actor()
    actor.answers["report"] = lambda: report(muted="bad")
    writer = ray_writer(actor)
    assert writer.offer(torch.rand(2, 3, 4, 4), ["good", "bad"]) == [True, False]
    assert actor.calls == ["report", "offer"], "so that it can regain its voice"


def test_a_new_writer_is_noticed_and_refusals_are_raised() -> None:
    actor, events = writer_actor(), Events()
    writer = ray_writer(actor, events)
    found = writer.report()
    assert (found.version, found.failed_saves, found.guard_fired, found.readers) == (3, 4, {"unknown": 2}, {1: 3})
    actor.answers["report"] = lambda: report("second", 1)
    with pytest.raises(Refused, match="rollback is refused"):
        writer.ask("rollback", 7).result(5)
    texts = [event.text for event in writer.report().events]
    assert texts == ["the writer was lost; it is back and continues from version 1", "of the actor"]
    actor.dead = True
    with pytest.raises(Refused, match="the writer is being restarted"):
        writer.ask("pause").result(5)


def test_closing_saves_and_stops_all_processes() -> None:
    actor, stopped = writer_actor(), []
    actor.answers["close"] = lambda: None
    writer = RayWriter(FakeRay(), actor, Events(), stop=lambda: stopped.append(list(actor.calls)))
    writer.start()
    assert writer.alive
    writer.close()
    assert not writer.alive
    assert [calls[-1] for calls in stopped] == ["close"], "after the state was saved"


@pytest.mark.parametrize("feedback", [False, True])
def test_readers_answer_corrected_predictions_and_with_feedback_send_them_along(feedback: bool) -> None:
    actor, sent = Actor({"predict": lambda images: (np.ones((len(images), 5), np.float32), 4)}), []

    def offer(images: Any, clients: Any, logits: Any) -> list[bool]:
        sent.append(logits)
        return [True] * len(images)

    readers = RayReaders(FakeRay(), [actor], offer, feedback=feedback)
    answer, *_ = readers.predict(0, torch.rand(3, 3, 4, 4), ["a"] * 3, lambda logits: 2 * logits)
    assert answer.tolist() == [[2.0] * 5] * 3
    assert [logits is answer for logits in sent] == [feedback]
    assert feedback or sent == [None]


def test_requests_pass_by_readers_that_died() -> None:
    def predict(images: Any) -> tuple[Any, int]:
        return np.zeros((len(images), 5), np.float32), 4

    actors = [Actor({"predict": predict, "version": lambda: 4}) for _ in range(2)]
    readers = RayReaders(FakeRay(), actors, lambda images, *_: [True] * len(images))
    batch, clients = torch.rand(3, 3, 4, 4), ["a"] * 3
    actors[0].dead = True
    for first in (0, 1, 0):
        assert readers.predict(first, batch, clients)[1:] == (4, [True] * 3)
    actors[1].dead = True
    with pytest.raises(Refused, match="all readers are being restarted"):
        readers.predict(0, batch, clients)
    actors[0].dead = actors[1].dead = False
    actors[0].calls.clear()
    assert readers.predict(0, batch, clients)[2] == [True] * 3
    assert actors[0].calls == ["predict"], "it is back"
