"""Watchers: called in order, around learning steps only."""

import copy

import pytest
import torch
from tests.conftest import stream
from torch import Tensor, nn

from resitta import Adapter, Callback, adapt
from resitta.errors import BadSetting


class Diary(Callback):
    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines = name, lines

    def before_step(self, adapter: Adapter, images: Tensor) -> None:
        self.lines.append(f"{self.name} before {adapter.samples}")

    def after_step(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
        self.lines.append(f"{self.name} after {adapter.samples} {len(images)} {len(logits)}")

    def on_event(self, adapter: Adapter, event: object) -> None:
        self.lines.append(f"{self.name} heard {event}")


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def watched(model: nn.Module, lines: list[str]) -> Adapter:
    adapter = adapt(model, "resitta", non_finite="skip")
    adapter.add_callback(Diary("one", lines))
    adapter.add_callback(Diary("two", lines))
    return adapter


def test_hooks_come_in_order_around_a_step(watched: Adapter, lines: list[str]) -> None:
    watched(stream(5))
    assert lines == ["one before 0", "two before 0", "one after 5 5 5", "two after 5 5 5"]


def test_a_paused_adapter_calls_nobody(watched: Adapter, lines: list[str]) -> None:
    with watched.paused():
        watched(stream(5))
    assert lines == []


def test_images_that_are_only_predicted_are_not_shown(watched: Adapter, lines: list[str]) -> None:
    images = stream(5)
    images[2] = torch.nan
    watched(images)
    assert lines[-1] == "two after 4 4 4"


def test_an_event_reaches_everybody(watched: Adapter, lines: list[str]) -> None:
    watched.emit("rain")
    assert lines == ["one heard rain", "two heard rain"]


def test_reset_and_loading_are_told_and_keep_the_watchers(watched: Adapter, lines: list[str]) -> None:
    watched(stream(3))
    state = watched.state_dict()
    watched.reset()
    watched.load_state_dict(state)
    assert [line for line in lines if line.startswith("one heard")] == [
        "one heard Restarted(samples=0)",
        "one heard Restarted(samples=3)",
    ]
    watched(stream(2))
    assert lines[-1] == "two after 5 2 2"


def test_watching_changes_no_prediction(model: nn.Module, watched: Adapter) -> None:
    plain = adapt(model, "resitta")
    for batch in torch.split(stream(200), 50):
        assert torch.equal(watched(batch), plain(batch))


def test_only_callbacks_are_added(model: nn.Module) -> None:
    with pytest.raises(BadSetting, match="derives from resitta.Callback, found a function"):
        adapt(model, "resitta").add_callback(lambda: None)  # type: ignore[arg-type]


def test_copies_go_without_watchers_that_do_not_ask_to_come_along(watched: Adapter, lines: list[str]) -> None:
    class Tally(Callback):
        copied = True
        steps = 0

        def after_step(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
            self.steps += 1

    tally = Tally()
    watched.add_callback(tally)
    watched(stream(2))
    del lines[:]
    twin = copy.deepcopy(watched)
    twin(stream(2))
    assert lines == []
    assert [type(callback) for callback in twin.callbacks] == [Tally]
    assert (tally.steps, twin.callbacks[0].steps) == (1, 2)  # type: ignore[attr-defined]
