"""One stream of a fleet, as its user holds it."""

import gc
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK

import resitta
from resitta.checkpoint.tree import same
from resitta.errors import BadSetting


def test_it_stays_valid_while_the_stream_is_away(tmp_path: Path) -> None:
    fleet = resitta.fleet(small_network(), "resitta", folder=tmp_path, max_streams=1)
    one, other = fleet["one"], fleet["other"]
    one(stream(8))
    other(stream(4))
    assert [row.in_memory for row in fleet.stats.values()] == [False, True]
    assert one.stats.samples == 8
    assert [row.in_memory for row in fleet.stats.values()] == [True, False]
    assert repr(one) == "<stream 'one'>"


def test_it_is_saved_as_an_adapter_is(tmp_path: Path) -> None:
    fleet = resitta.fleet(small_network(), "resitta", capacity=8, update_every=8)
    fleet["a"](stream(64))
    fleet["a"].save(tmp_path / "a")
    alone = resitta.load(small_network(), tmp_path / "a")
    fleet["b"].restore(tmp_path / "a")
    images = stream(8, seed=3)
    assert torch.equal(alone(images), fleet["b"](images))
    fleet["b"].reset()
    assert fleet["b"].stats.samples == 0


def test_callbacks_of_one_stream_are_its_own(tmp_path: Path) -> None:
    seen: list[int] = []

    class Count(resitta.Callback):
        def after_step(self, adapter: object, images: torch.Tensor, logits: torch.Tensor) -> None:
            seen.append(len(images))

    fleet = resitta.fleet(small_network(), "resitta", folder=tmp_path, max_streams=2)
    fleet["a"].add_callback(Count())
    fleet(stream(5), ["a", "b", "a", "b", "a"])
    fleet["c"](stream(1))
    fleet["d"](stream(1))
    fleet["a"](stream(2))
    assert seen == [3, 2]
    with pytest.raises(BadSetting, match="a callback derives from"):
        fleet["a"].add_callback(cast(Any, print))


def test_a_stream_learns_from_predictions_made_elsewhere_as_its_adapter_does() -> None:
    model = small_network()
    fleet, adapter = resitta.fleet(model, "resitta", **QUICK), resitta.adapt(model, "resitta", **QUICK)
    for images in torch.split(stream(24), 4):
        logits = adapter.source(images).detach()
        fleet["a"].learn_from(images, logits)
        adapter.learn_from(images, logits)
        fleet["b"](images)
    mine = fleet["a"].adapter
    assert same(mine.learner.state_dict(), adapter.learner.state_dict())
    assert (mine.samples, mine.learner.updates) == (24, 3)
    with fleet["a"].paused():
        fleet["a"].learn_from(stream(4), adapter(stream(4)))
    assert fleet["a"].stats.samples == 24


def test_a_stream_stays_paused_while_its_block_lasts_and_leaves_nothing_behind() -> None:
    fleet = resitta.fleet(small_network(), "resitta", **QUICK)
    with fleet["a"].paused():
        gc.collect()
        fleet["a"](stream(4))
        assert fleet.stats["a"].samples == 0
    for number in range(10):
        fleet[f"s{number}"](stream(1))
    assert len(fleet._pauses) == 0
