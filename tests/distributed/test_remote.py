"""The writer's and the readers' faces, before actors and a Ray that live in this process."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from resitta.distributed.ray_actors import Report
from resitta.distributed.remote import IN_FLIGHT, RemoteInbox, RemoteReaders, RemoteWriter
from resitta.monitor.stats import Stats
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learn_queue import Counters
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.training.network import Network


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


def report(writer: str = "first", version: int = 3) -> Report:
    counters, stats = Counters(offered=5, learned=5), Stats(5, 0, 0.0, None, {})
    return Report(writer, version, {}, False, counters, stats, [], failed_saves=4, guard_fired={"unknown": 2})


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
    inbox = RemoteInbox(FakeRay(), actor)
    assert inbox.offer(torch.rand(2, 3, 4, 4), ["a", "b"]) == [True, True]
    actor.dead = True
    assert inbox.offer(torch.rand(2, 3, 4, 4), ["a", "b"]) == [True, True], "they are on their way"
    assert inbox.counters == Counters(offered=7, dropped=2, learned=5), "the first were not acknowledged any more"
    actor.silent = True
    taken = [inbox.offer(torch.rand(1, 3, 4, 4), ["a"]) for _ in range(IN_FLIGHT + 5)]
    assert taken.count([True]) == IN_FLIGHT
    assert inbox.counters.dropped == 2 + 2 + 5


def test_images_of_clients_that_are_not_learned_from_are_sent_all_the_same() -> None:
    actor = writer_actor()
    actor.answers["report"] = lambda: replace(report(), muted=frozenset({"bad"}))
    inbox = RemoteInbox(FakeRay(), actor)
    assert inbox.offer(torch.rand(2, 3, 4, 4), ["good", "bad"]) == [True, False]
    assert actor.calls == ["report", "offer"], "so that it can regain its voice"


def test_a_new_writer_is_noticed_and_refusals_are_raised(tmp_path: Path) -> None:
    actor, events = writer_actor(), Events()
    folder = StateFolder(tmp_path, keep=2)
    writer = RemoteWriter(FakeRay(), actor, folder, Network(nn.Linear(1, 2)), events)
    assert (writer.published.version, writer.failed_saves, writer.guard_fired) == (3, 4, {"unknown": 2})
    actor.answers["report"] = lambda: report("second", 1)
    with pytest.raises(Refused, match="rollback is refused"):
        writer.rollback(7)
    assert [event.text for event in events.newest()] == ["the writer was lost; it is back and goes on from version 1"]
    actor.dead = True
    with pytest.raises(Refused, match="the writer is being restarted"):
        writer.pause()


def test_requests_pass_by_readers_that_died() -> None:
    def predict(images: Any) -> tuple[Any, int]:
        return np.zeros((len(images), 5), np.float32), 4

    actors = [Actor({"predict": predict, "version": lambda: 4}) for _ in range(2)]
    readers = RemoteReaders(FakeRay(), actors, Limits(), lambda images, _: [True] * len(images))
    readers.start()
    actors[0].dead = True
    assert [readers.submit(torch.rand(3, 3, 4, 4)).result(5).version for _ in range(3)] == [4, 4, 4]
    actors[1].dead = True
    with pytest.raises(Refused, match="all readers are being restarted"):
        readers.submit(torch.rand(3, 3, 4, 4)).result(5)
    actors[0].dead = actors[1].dead = False
    assert readers.submit(torch.rand(3, 3, 4, 4)).result(5).learned == 3
    readers.close()
    assert not readers.alive
