"""Predictions at once, learning beside them; on the CPU, where a thread is all that is needed."""

import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tools import Gate
from torch import Tensor, nn

import resitta
from resitta.checkpoint.autosave import Autosave, saved
from resitta.checkpoint.tree import same
from resitta.errors import BadImages, BadSetting, Collapsed
from resitta.monitor.callbacks import Callback
from resitta.monitor.guard import Guard
from resitta.runtime.background import Background
from resitta.runtime.weight_handoff import weights_of
from resitta.training.strong_view import identity


def images(n: int, seed: int = 0, size: int = 10) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def adapt(model: nn.Module, method: str = "resitta", **options: Any) -> resitta.Adapter:
    return resitta.adapt(model, method, background=True, **options)


def side(adapter: resitta.Adapter) -> Background:
    assert adapter.background is not None
    return adapter.background


@pytest.fixture
def gated(model: nn.Module, gate: Gate) -> resitta.Adapter:
    """An adapter in the middle of its first update."""
    adapter = adapt(model, strong_view=gate)
    adapter(images(64))
    assert gate.reached.wait(20)
    return adapter


# --- the same as without ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["resitta", "rotta"])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_with_a_sync_after_every_call_all_is_as_without_background(model: nn.Module, method: str, size: int) -> None:
    beside, plain = adapt(model, method), resitta.adapt(model, method)
    for batch in torch.split(images(270), size):
        assert torch.equal(beside(batch), plain(batch))
        beside.sync()
    assert same(beside.state_dict(), plain.state_dict())
    assert beside.stats == plain.stats
    assert plain.stats.updates == 4


@pytest.mark.parametrize("settings", [{"train": "all"}, {"norm": "rbn"}, {"refresh": True}, {"precision": "bf16"}])
def test_variants_are_the_same_too(model: nn.Module, settings: dict[str, Any]) -> None:
    beside, plain = adapt(model, **settings), resitta.adapt(model, "resitta", **settings)
    for batch in torch.split(images(200), 50):
        assert torch.equal(beside(batch), plain(batch))
        beside.sync()
    assert same(beside.state_dict(), plain.state_dict())


@pytest.mark.parametrize("method", ["resitta", "rotta"])
def test_it_keeps_every_promise_of_a_method(method: str) -> None:
    assert "memory_is_bounded" in resitta.check_method(method, background=True)


def test_images_that_are_not_finite_are_only_predicted(model: nn.Module) -> None:
    beside, plain = adapt(model, non_finite="skip"), resitta.adapt(model, "resitta", non_finite="skip")
    batch = images(70)
    batch[3] = torch.nan
    assert torch.equal(beside(batch), plain(batch))
    beside.sync()
    assert same(beside.state_dict(), plain.state_dict())
    assert beside.samples == 69


@pytest.mark.parametrize(("method", "settings"), [("tent", {}), ("source", {}), ("resitta", {"norm": "adbn"})])
def test_other_methods_are_refused(model: nn.Module, method: str, settings: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=rf"such as resitta or rotta, found '{method}'"):
        adapt(model, method, **settings)


def test_the_option_is_true_or_false(model: nn.Module) -> None:
    with pytest.raises(BadSetting, match="background must be True or False, found 1"):
        resitta.adapt(model, background=1)  # type: ignore[arg-type]


def test_without_background_sync_does_nothing(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter.sync()
    assert adapter.background is None


# --- beside -----------------------------------------------------------------------------------------------------------


def test_calls_do_not_wait_for_an_update(gated: resitta.Adapter, gate: Gate, model: nn.Module) -> None:
    first = gated(images(8, seed=1))
    torch.testing.assert_close(first, model(images(8, seed=1)))  # nothing was learned yet
    gate.open.set()
    gated.sync()
    assert not torch.equal(gated(images(8, seed=1)), first)


def test_a_caller_may_overwrite_images_and_logits(model: nn.Module, gate: Gate) -> None:
    beside, plain = adapt(model, strong_view=gate), resitta.adapt(model, "resitta", strong_view=identity)
    for seed in range(3):
        batch = images(64, seed)
        plain(batch)
        gate.open.clear()
        beside(batch).zero_()
        batch.zero_()
        gate.open.set()
        beside.sync()
    assert same(beside.state_dict(), plain.state_dict())


def test_small_batches_are_learned_from_together(gated: resitta.Adapter, gate: Gate) -> None:
    sizes: list[int] = []

    class Sizes(Callback):
        def before_step(self, adapter: resitta.Adapter, images: Tensor) -> None:
            sizes.append(len(images))

    gated.add_callback(Sizes())
    for seed in range(100):
        gated(images(1, seed))
    gate.open.set()
    gated.sync()
    assert sizes == [64, 36]
    assert gated.samples == 164


def test_the_queue_is_bounded_and_what_finds_no_room_is_counted(gated: resitta.Adapter, gate: Gate) -> None:
    for seed in range(5):
        assert gated(images(100, seed)).shape == (100, 5)
    assert side(gated).dropped == 300, "two batches wait, a third would be 300 samples"
    gate.open.set()
    gated.sync()
    assert gated.samples == 264
    gated(images(1000))
    gated.sync()
    assert (gated.samples, side(gated).dropped) == (1264, 300), "a batch alone finds room whatever its size"


def test_paused_offers_nothing(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(64))
    with adapter.paused():
        before = adapter.state_dict()
        logits = [adapter(images(64, seed=1)) for _ in range(3)]
        assert same(before, adapter.state_dict())
        assert torch.equal(logits[0], logits[2]), "what came before the pause was learned before it"
    assert adapter.samples == 64


# --- never half an update ---------------------------------------------------------------------------------------------


def test_no_prediction_sees_half_an_update(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapt(model, update_every=4)
    side(adapter).queue.batch = 4
    versions = iter(range(1, 1000))

    def write_slowly() -> None:
        version = next(versions)
        for tensor in weights_of(adapter):
            tensor.data.fill_(version)
            time.sleep(0.001)
        adapter.learner.updates += 1

    monkeypatch.setattr(adapter.learner, "update", write_slowly)
    front = side(adapter).front.weights.target
    mixed: list[Any] = []
    seen: set[float] = set()

    def look(model: nn.Module, inputs: tuple[Tensor]) -> None:
        start = {tensor.flatten()[0].item() for tensor in front}
        time.sleep(0.002)
        end = {tensor.flatten()[-1].item() for tensor in front}
        seen.update(end)
        if len(start | end) > 1:
            mixed.append((start, end))

    for tensor in weights_of(adapter):
        tensor.data.zero_()
    with adapter.lock:
        side(adapter).publish(adapter)
    side(adapter).front.network.model.register_forward_pre_hook(look)

    def serve() -> None:
        for seed in range(40):
            adapter(images(4, seed))

    in_threads(serve, serve, adapter.sync)
    adapter.sync()
    assert not mixed
    assert len(seen) > 5, "updates came through in between"


def in_threads(*tasks: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


# --- several threads --------------------------------------------------------------------------------------------------


def test_everything_can_be_used_while_it_learns(model: nn.Module, tmp_path: Path) -> None:
    adapter = adapt(model, update_every=16)
    state = adapter.state_dict()
    path = tmp_path / "state.safetensors"

    def serve() -> None:
        for seed in range(30):
            assert adapter(images(8, seed)).isfinite().all()

    def look() -> None:
        for _ in range(3):
            adapter.save(path)
            adapter.restore(path)
            adapter.load_state_dict(state)
            copy.deepcopy(adapter)(images(3))
            assert adapter.stats.updates >= 0
            adapter.export()(images(3))
            adapter.float()
            adapter.sync()
            adapter.reset()
            with adapter.paused():
                adapter(images(3))

    in_threads(serve, serve, look, look)
    adapter.sync()
    adapter.reset()
    assert same(adapter.state_dict(), state)


def test_concurrent_callers_lose_nothing(model: nn.Module) -> None:
    adapter = adapt(model)

    def serve() -> None:
        for seed in range(20):
            adapter(images(5, seed))

    in_threads(*[serve] * 4)
    adapter.sync()
    assert adapter.samples + side(adapter).dropped == 400


def test_the_state_includes_what_was_offered(model: nn.Module) -> None:
    beside, plain = adapt(model), resitta.adapt(model, "resitta")
    beside(images(130))
    plain(images(130))
    assert same(beside.state_dict(), plain.state_dict())


def test_reset_and_load_show_in_the_next_call(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(64))
    state, learned = adapter.state_dict(), None
    with adapter.paused():
        learned = adapter(images(8))
    adapter.reset()
    torch.testing.assert_close(adapter(images(8)), model(images(8)))
    adapter.load_state_dict(state)
    with adapter.paused():
        assert torch.equal(adapter(images(8)), learned)
    assert torch.allclose(adapter.export()(images(8)), learned, atol=1e-6)


def test_it_follows_to_another_precision(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(64))
    adapter.double()
    assert adapter(images(64)).dtype == torch.float64
    adapter.sync()
    assert adapter.stats.updates == 2


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_in_the_learner_thread_reaches_the_next_call_once(model: nn.Module) -> None:
    def broken(batch: Tensor) -> Tensor:
        raise ZeroDivisionError("in the view")

    adapter = adapt(model, strong_view=broken)
    adapter(images(64))
    with pytest.raises(ZeroDivisionError, match="in the view"):
        adapter.sync()
    adapter.sync()
    adapter(images(64))
    side(adapter).thread.settle()
    with pytest.raises(ZeroDivisionError):
        adapter(images(1))
    assert adapter(images(1)).shape == (1, 5)
    adapter.sync()
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.occupancy > 0


def test_images_of_another_size_are_reported_and_the_stream_goes_on(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(8))
    adapter(images(8, size=12))
    with pytest.raises(BadImages, match="the memory holds"):
        adapter.sync()
    adapter(images(8))
    adapter.sync()
    assert adapter.samples == 16


def test_a_bad_call_is_refused_at_once(model: nn.Module) -> None:
    adapter = adapt(model)
    with pytest.raises(BadImages):
        adapter(images(4) * 255)
    adapter.sync()
    assert adapter.samples == 0


# --- callbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["rollback", "reset", "warn"])
def test_a_guard_acts_as_without_background(model: nn.Module, action: Any) -> None:
    guard = Guard(action=action, max_drift=0.01, window=10)
    beside, plain = (resitta.adapt(model, "resitta", guard=guard, background=b) for b in (True, False))
    for batch in torch.split(images(400), 50):
        assert torch.equal(beside(batch), plain(batch))
        beside.sync()
    assert same(beside.state_dict(), plain.state_dict())
    assert beside.guard is not None
    assert plain.guard is not None
    assert beside.guard.counts == plain.guard.counts
    assert plain.guard.counts["drift"] > 0


def test_a_guard_that_raises_reaches_the_caller(model: nn.Module) -> None:
    adapter = adapt(model, guard=Guard(action="raise", max_drift=0.01, window=10))
    adapter(images(64))
    with pytest.raises(Collapsed):
        adapter.sync()


def test_autosave_saves_from_the_learner_thread(model: nn.Module, tmp_path: Path) -> None:
    adapter = adapt(model)
    events: list[resitta.monitor.events.Event] = []
    adapter.add_callback(Autosave(tmp_path, updates=1))
    adapter.listen(events.append)
    for seed in range(3):
        adapter(images(64, seed))
        adapter.stats  # noqa: B018  (looks at the same time)
    adapter.sync()
    assert len(saved(tmp_path)) == 3
    again = resitta.recover(model, tmp_path)
    assert again.options.background
    assert same(again.state_dict(), adapter.state_dict())
    assert [event.updates for event in events if isinstance(event, resitta.monitor.events.Updated)] == [1, 2, 3]


def test_a_callback_may_use_the_adapter(model: nn.Module) -> None:
    used = []

    class Curious(Callback):
        def after_step(self, adapter: resitta.Adapter, images: Tensor, logits: Tensor) -> None:
            adapter.sync()
            with adapter.paused():
                used.append((adapter.stats.samples, adapter(images[:2]).shape))

    adapter = adapt(model)
    adapter.add_callback(Curious())
    adapter(images(10))
    adapter.sync()
    assert used == [(10, (2, 5))]
