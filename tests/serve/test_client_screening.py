import logging

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.monitor.guard import Guard
from resitta.serve.client_screening import RECENT, ClientScreening
from resitta.serve.events import Events


def screening_for(model: nn.Module, *, guard: Guard | bool = True, most: int = 1000) -> ClientScreening:
    return ClientScreening(resitta.adapt(model, "resitta", guard=guard), Events(), most=most)


def batch(n: int, black: int = 0) -> tuple[Tensor, Tensor]:
    """Images of which the last are black, and predictions that are sure."""
    images = torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    images[n - black :] = 0
    return images, torch.eye(5).repeat(n, 1)[:n] * 9


def allowed(screening: ClientScreening, good: int, bad: int) -> list[bool]:
    """Images of a good client, then black ones of a bad client."""
    found: list[bool] = screening.allowed(*batch(good + bad, bad), ["good"] * good + ["bad"] * bad).tolist()
    return found


def test_unknown_images_are_left_out_and_the_others_heard(model: nn.Module) -> None:
    screening = screening_for(model)
    assert allowed(screening, 4, 2) == [True] * 4 + [False] * 2
    assert screening.muted == frozenset()


def test_a_client_loses_its_voice_alone_and_regains_it(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    screening = screening_for(model)
    for _ in range(8):
        assert allowed(screening, 2, 8)[:2] == [True, True]
    assert screening.muted == {"bad"}
    mixed = batch(10)
    assert screening.allowed(*mixed, ["good"] * 5 + ["bad"] * 5).tolist() == [True] * 5 + [False] * 5
    again = [screening.allowed(*batch(10), ["good"] * 2 + ["bad"] * 8).tolist()[-1] for _ in range(20)]
    assert again == sorted(again)
    assert 5 < again.index(True) < 15, "about 90 good images, not at once"
    assert screening.muted == frozenset()
    regained, lost = screening.events.newest()
    name = next(client["name"] for client in screening.listing() if client["unknown"])
    assert lost.text.startswith(f"client {name} is predicted, but no longer learned from: ")
    assert regained.text.startswith(f"client {name} is learned from again: ")
    assert "bad" not in lost.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "(bad)" in caplog.text, "who runs the service may know"


def test_a_client_alone_is_left_to_the_guard(model: nn.Module) -> None:
    screening = screening_for(model)
    for _ in range(20):
        assert screening.allowed(*batch(8, 8), ["one"] * 8).all()
    assert screening.muted == frozenset()
    assert not screening.allowed(*batch(9, 8), ["other"] + ["one"] * 8)[1:].any()
    screening.allowed(*batch(8), ["one"] * 8)
    for _ in range(RECENT // 50 + 1):
        screening.allowed(*batch(50), ["one"] * 50)
    assert screening.allowed(*batch(8, 8), ["one"] * 8).all(), "the other one has gone"


def test_a_client_without_a_voice_does_not_regain_it_by_being_alone(model: nn.Module) -> None:
    screening = screening_for(model)
    for _ in range(8):
        allowed(screening, 1, 16)
    for _ in range(RECENT // 50 + 2):
        assert not screening.allowed(*batch(50, 50), ["bad"] * 50).any()
    assert screening.muted == {"bad"}


@pytest.mark.parametrize("guard", [False, Guard(screen=False)])
def test_without_a_screen_everyone_is_heard(model: nn.Module, guard: Guard | bool) -> None:
    assert all(allowed(screening_for(model, guard=guard), 2, 50))


def test_only_so_many_clients_are_remembered(model: nn.Module) -> None:
    screening = screening_for(model, most=3)
    for _ in range(8):
        allowed(screening, 1, 16)
    for number in range(5):
        screening.allowed(*batch(2), ["good", f"passing {number}"])
    assert len(screening.listing()) == 3
    assert screening.muted == frozenset(), "forgotten with its client"
    assert allowed(screening, 1, 1) == [True, False]


def test_the_listing_names_the_busiest_by_names_that_tell_nothing(model: nn.Module) -> None:
    screening = screening_for(model)
    keys = ["192.0.2.1"] * 3 + ["192.0.2.2"] * 5
    screening.count(keys, screening.allowed(*batch(8, 1), keys))
    first, second = screening.listing()
    assert (first["learned"], first["screened"], first["unknown"]) == (4, 1, 1)
    assert (second["learned"], second["screened"]) == (3, 0)
    assert "192" not in str(screening.listing())
    assert len(screening.listing(top=1)) == 1
    assert screening_for(model)._name("192.0.2.1") != screening._name("192.0.2.1"), "nobody can look an address up"


def test_many_clients_do_not_push_other_events_out(model: nn.Module) -> None:
    screening = screening_for(model)
    for number in range(40):
        for _ in range(2):
            screening.allowed(*batch(65, 64), ["good"] + [f"bad {number}"] * 64)
    assert len(screening.muted) == 40
    assert 10 <= len(screening.events.newest()) <= 16
