"""Streams of a fleet behave as adapters of their own, whatever the others do."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK, batches, rows, separately, states
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.conformance.subject import spread_images, spread_network
from resitta.errors import BadImages, BadSetting, NonFiniteImages, StreamFailure
from resitta.fleets import StreamEvent
from resitta.monitor.events import GuardFired, Updated


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("resitta", QUICK),
        ("resitta", {**QUICK, "norm": "rbn", "intransigent": True}),
        ("resitta", {**QUICK, "norm": "adbn"}),
        ("resitta", {**QUICK, "reset_on_shift": 0.1, "reset_every": 7}),
        ("resitta", {**QUICK, "label_prior": "temporal", "feedback": True}),
        ("resitta", {**QUICK, "guard": True}),
        ("resitta", {**QUICK, "train": "all"}),
        ("rotta", QUICK),
        ("tribe", {}),
        ("tide", {}),
        ("note", {}),
        ("tent", {}),
        ("source", {}),
    ],
)
def test_without_a_budget_every_stream_is_an_adapter_of_its_own(method: str, settings: dict[str, Any]) -> None:
    model, fed = small_network(), batches(streams=3, length=12)
    expected, adapters = separately(lambda: resitta.adapt(model, method, **settings), fed)
    fleet = resitta.fleet(model, method, updates_per_call=None, **settings)
    for (images, names), logits in zip(fed, expected, strict=True):
        torch.testing.assert_close(fleet(images, names), logits, rtol=1e-5, atol=1e-5)
    for name, its in adapters.items():
        mine = fleet[name].adapter
        assert (mine.samples, mine.batches, mine.learner.updates) == (its.samples, its.batches, its.learner.updates)
        assert mine.learner.updates >= 1 or method in ("source", "note")


class Counted(nn.Module):
    """Counts its passes and those of its copies."""

    passes = 0

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        Counted.passes += 1
        logits: Tensor = self.model(images)
        return logits


@pytest.mark.parametrize(
    ("method", "passes"), [("resitta", 1), ("rotta", 1), ("tribe", 1), ("tide", 1), ("bn", 3), ("note", 3), ("tent", 3)]
)
def test_a_mixed_batch_is_one_pass_where_the_method_allows_it(method: str, passes: int) -> None:
    fleet = resitta.fleet(Counted(small_network()), method)
    with fleet.paused():
        Counted.passes = 0
        fleet(stream(6), ["a", "b", "c"] * 2)
    assert Counted.passes == passes


def test_frozen_weights_are_in_memory_once() -> None:
    model = small_network()
    assert isinstance(model, nn.Sequential)
    fleet = resitta.fleet(model, "resitta", **QUICK)
    fleet(stream(8), [f"s{number}" for number in range(8)])
    own = {sum(p.numel() for p in fleet[name].adapter.parameters()) for name in fleet}
    assert own == {2 * 2 * (8 + 12)}, "gamma and beta of two layers, of teacher and student"
    frozen = nn.Conv2d | nn.Linear
    held = {m.weight.data_ptr() for name in fleet for m in fleet[name].adapter.modules() if isinstance(m, frozen)}
    assert held == {m.weight.data_ptr() for m in model if isinstance(m, frozen)}


def test_an_update_leaves_no_copies_behind() -> None:
    fleet = resitta.fleet(small_network(), "resitta", **QUICK)
    fleet["a"](stream(16))
    assert fleet["a"].stats.updates == 2
    assert fleet["a"].adapter.rollback._tensors is None


@pytest.mark.parametrize("guard", [False, True])
def test_one_stream_of_noise_changes_nothing_for_nineteen_others(guard: bool) -> None:
    model, fed = spread_network(), spread_images(20 * 24).view(24, 20, 3, 16, 16)
    names, noise = [f"s{number}" for number in range(20)], torch.Generator().manual_seed(3)
    fleets = [resitta.fleet(model, "resitta", updates_per_call=None, guard=guard, **QUICK) for _ in range(2)]
    heard: list[StreamEvent] = []
    fleets[1].listen(heard.append)
    kept = [index for index in range(20) if index != 7]
    for images in fed:
        noisy = images.clone()
        noisy[7] = torch.rand(images[7].shape, generator=noise)
        assert torch.equal(fleets[0](images, names)[kept], fleets[1](noisy, names)[kept])
    assert same(*({name: s for name, s in states(fleet).items() if name != "s7"} for fleet in fleets))
    unknown = {e.stream for e in heard if isinstance(e.event, GuardFired) and e.event.reason == "unknown"}
    assert ("s7" in unknown) == guard
    assert len({e.stream for e in heard if isinstance(e.event, Updated)}) >= 19


def test_a_stream_that_fails_to_learn_is_named_and_the_others_learn() -> None:
    class Broken(resitta.Callback):
        def before_step(self, adapter: Any, images: Tensor) -> None:
            raise MemoryError("no room")

    for method in ("resitta", "tent"):
        fleets = [resitta.fleet(small_network(), method) for _ in range(2)]
        fleets[1]["s1"].add_callback(Broken())
        images, names = batches(streams=3, length=1)[0]
        logits = fleets[0](images, names)
        with pytest.raises(StreamFailure, match="1 of the streams could not learn; 's1': MemoryError: no room") as it:
            fleets[1](images, names)
        assert isinstance(it.value.logits, Tensor)
        torch.testing.assert_close(it.value.logits, logits)
        assert list(it.value.errors) == ["s1"]
        assert [row.samples for row in rows(fleets[1])] == [2, 0, 2]


def test_a_failing_update_of_a_waiting_stream_leaves_it_as_it_was() -> None:
    calls: list[int] = []

    def view(images: Tensor) -> Tensor:
        calls.append(len(images))
        if len(calls) == 2:
            raise RuntimeError("the second view fails")
        return images

    fleet = resitta.fleet(small_network(), "resitta", updates_per_call=1, strong_view=view, **QUICK)
    fed = batches(streams=3, length=7)
    for images, names in fed[:4]:
        fleet(images, names)
    with pytest.raises(StreamFailure, match="the second view fails"):
        fleet(*fed[4])
    for images, names in fed[5:]:
        fleet(images, names)
    fleet.sync()
    assert sorted((row.samples, row.dropped) for row in rows(fleet)) == [(10, 4), (14, 0), (14, 0)]


def test_bad_images_are_refused_with_the_name_of_their_stream() -> None:
    fleet = resitta.fleet(small_network(), "resitta", **QUICK)
    images, names = batches(streams=3, length=1)[0]
    fleet(images, names)
    before = states(fleet)
    images[4] += 3
    with pytest.raises(BadImages, match="stream 's1': pixels must lie in"):
        fleet(images, names)
    images[4] = torch.nan
    with pytest.raises(NonFiniteImages, match="stream 's1': 1 of 2 images"):
        fleet(images, names)
    assert same(states(fleet), before)


def test_images_that_are_not_finite_are_predicted_only() -> None:
    images, names = batches(streams=3, length=1)[0]
    images[4] = torch.nan
    images[2] = images[5] = torch.inf
    fleet = resitta.fleet(small_network(), "resitta", non_finite="skip", **QUICK)
    logits = fleet(images, names)
    assert [row.samples for row in rows(fleet)] == [2, 1, 0]
    for index in range(3):
        alone = resitta.adapt(small_network(), "resitta", non_finite="skip", **QUICK)(images[index::3])
        torch.testing.assert_close(logits[index::3], alone, rtol=1e-5, atol=1e-5)


def test_a_paused_fleet_and_a_paused_stream_only_predict() -> None:
    fleet = resitta.fleet(small_network(), "resitta", label_prior="temporal", **QUICK)
    fed = batches(streams=2, length=6)
    with fleet["s1"].paused() as paused:
        fleet(*fed[0])
        assert paused(fed[0][0]).shape == (4, 5)
    assert [row.samples for row in rows(fleet)] == [2, 0]
    before = states(fleet)
    with fleet.paused():
        fleet(*fed[1])
        fleet["s0"](fed[1][0])
    assert same(states(fleet), before)
    fleet(*fed[1])
    assert [row.samples for row in rows(fleet)] == [4, 2]


def test_events_carry_the_name_of_their_stream_also_after_it_was_away(tmp_path: Path) -> None:
    heard: list[StreamEvent] = []
    own: list[Any] = []
    with resitta.fleet(small_network(), "resitta", folder=tmp_path, max_streams=1, **QUICK) as fleet:
        fleet.listen(heard.append)
        fleet["b"].listen(own.append)
        for _ in range(2):
            for name in "ab":
                fleet[name](stream(8))
        fleet["a"](stream(4))
        fleet["b"](stream(4))
    updated = [(e.stream, e.event.updates) for e in heard if isinstance(e.event, Updated)]
    assert updated == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [event.updates for event in own] == [1, 2]


def test_threads_may_share_a_fleet() -> None:
    fleet = resitta.fleet(small_network(), "resitta", **QUICK)
    fed, failures = batches(streams=4, length=10), list[BaseException]()

    def run(name: str) -> None:
        try:
            for images, names in fed:
                fleet(images, [f"{name}-{other}" for other in names])
                fleet["common"](images)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    fleet.sync()
    assert {row.samples for name, row in fleet.stats.items() if name != "common"} == {20}
    assert fleet["common"].stats.samples == 4 * 80


def test_what_is_done_to_an_adapter_shows_in_the_next_mixed_batch(tmp_path: Path) -> None:
    fleet = resitta.fleet(small_network(), "resitta", **QUICK)
    fed = batches(streams=2, length=8)
    for images, names in fed:
        fleet(images, names)
    images, names = fed[0]
    fleet["s0"].save(tmp_path / "s0.safetensors")

    def predicted() -> Tensor:
        with fleet.paused():
            logits: Tensor = fleet(images, names)
        return logits

    learned = predicted()
    fleet["s0"].reset()
    source = resitta.adapt(small_network(), "source")(images)
    torch.testing.assert_close(predicted()[0::2], source[0::2], rtol=1e-5, atol=1e-5)
    assert torch.equal(predicted()[1::2], learned[1::2])
    fleet["s0"].restore(tmp_path / "s0.safetensors")
    assert torch.equal(predicted(), learned)
    fleet["s0"].adapter(stream(64, seed=9))
    assert not torch.allclose(predicted()[0::2], learned[0::2], atol=1e-4)
    torch.testing.assert_close(fleet["s1"].export()(images)[1::2], learned[1::2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_streams": 0}, "max_streams must be >= 1, found 0"),
        ({"updates_per_call": 0.5}, "updates_per_call must be a whole number"),
        ({"start": "far"}, "start must be one of 'source', 'nearest'"),
        ({"background": True}, "leave out background="),
        ({"group": "world"}, "leave out group="),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        resitta.fleet(small_network(), "resitta", **arguments)


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (["a"], "2 images and 1 names"),
        (["a", ""], "must be a string of one character"),
        (["a", 3], "found 3"),
        ("", "found ''"),
        (["a", "x" * 300], "takes 300; shorten it"),
    ],
)
def test_bad_names_are_refused(streams: Any, message: str) -> None:
    fleet = resitta.fleet(small_network(), "resitta")
    with pytest.raises(BadSetting, match=message):
        fleet(stream(2), streams)
    assert not len(fleet)


def test_a_model_that_mixes_the_images_of_a_batch_takes_a_pass_for_each_stream(caplog: Any) -> None:
    class Crops(nn.Module):
        """Classifies two crops of every image, and takes the mean."""

        def __init__(self) -> None:
            super().__init__()
            self.model = small_network()

        def forward(self, images: Tensor) -> Tensor:
            crops = torch.cat((images[..., 1:], images[..., :-1]))
            logits: Tensor = self.model(crops).view(2, len(images), -1).mean(dim=0)
            return logits

    model, fed = Crops(), batches(streams=3, length=5)
    expected, _ = separately(lambda: resitta.adapt(model, "resitta", **QUICK), fed)
    fleet = resitta.fleet(model, "resitta", updates_per_call=None, **QUICK)
    for (images, names), logits in zip(fed, expected, strict=True):
        torch.testing.assert_close(fleet(images, names), logits, rtol=1e-5, atol=1e-5)
    assert "each stream is predicted in a pass of its own" in caplog.text


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-6), (torch.bfloat16, 5e-2)])
def test_converted_models_and_inference_mode_are_fine(kind: torch.dtype, tolerance: float) -> None:
    model, fed = small_network().to(kind), batches(streams=2, length=5)
    expected, _ = separately(lambda: resitta.adapt(model, "resitta", **QUICK), fed)
    fleet = resitta.fleet(model, "resitta", updates_per_call=None, **QUICK)
    with torch.inference_mode():
        for (images, names), logits in zip(fed, expected, strict=True):
            torch.testing.assert_close(fleet(images, names).float(), logits, rtol=tolerance, atol=tolerance)


def test_looking_at_a_stream_that_waits_makes_no_later_call_fail() -> None:
    fleet = resitta.fleet(small_network(), "tide", update_every=4, label_prior="none")
    fleet(stream(20), [f"s{number % 5}" for number in range(20)])
    waiting = next(name for name, row in fleet.stats.items() if row.waiting)
    assert fleet[waiting].stats.samples == 4
    fleet(stream(4), ["a", "b", "a", "b"])


@pytest.mark.parametrize("batch", [stream(4), torch.rand(4, 5, 10, 10)])
def test_a_call_that_is_refused_begins_no_stream(batch: torch.Tensor) -> None:
    fleet = resitta.fleet(small_network(), "resitta", max_streams=2)
    fleet(stream(2), "a")
    names = ["b", "b", "c", "c"] if batch.shape[1] == 3 else ["b"] * 4
    with pytest.raises((BadSetting, BadImages)):
        fleet(batch, names)
    assert list(fleet) == ["a"]
    fleet(stream(2), "b")
