"""What every method has: a label prior, and a start from the source every so many batches."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.adapter import Adapter
from resitta.checkpoint.tree import same
from resitta.conformance import spread_images, spread_network
from resitta.errors import BadSetting


def colours(classes: Tensor, seed: int = 0) -> Tensor:
    """Grainy images whose tint tells their class, not always rightly."""
    generator = torch.Generator().manual_seed(seed)
    tint = 0.5 + 0.1 * nn.functional.one_hot(classes, 3) + 0.1 * torch.randn(len(classes), 3, generator=generator)
    return (tint[:, :, None, None] + 0.05 * torch.randn(len(classes), 3, 4, 4, generator=generator)).clamp(0, 1)


def reader_of_colours() -> nn.Module:
    """A network that takes the tint for the class, and is too certain of it."""
    layer, head = nn.BatchNorm2d(3), nn.Linear(3, 3)
    layer.running_mean, layer.running_var = torch.full((3,), 0.53), torch.full((3,), 0.015)
    with torch.no_grad():
        head.weight.copy_(3 * torch.eye(3))
        head.bias.zero_()
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


RUNS = torch.arange(900) // 50 % 3


def answers(adapter: Adapter, pixels: Tensor, size: int = 30) -> Tensor:
    return torch.cat([adapter(batch) for batch in torch.split(pixels, size)])


@pytest.mark.parametrize("method", ["source", "lame", "note", "rotta", "resitta"])  # others: not with so few classes
def test_a_label_prior_corrects_any_method(method: str) -> None:
    pixels = colours(RUNS)
    plain = resitta.adapt(reader_of_colours(), method)
    adapter = resitta.adapt(reader_of_colours(), method, label_prior="temporal")
    wrong = [(answers(each, pixels).argmax(1) != RUNS)[300:].float().mean() for each in (plain, adapter)]
    assert wrong[1] < 0.6 * wrong[0]
    assert same(plain.learner.state_dict(), adapter.learner.state_dict())  # without feedback it learns the same
    assert plain.stats.label_prior is None
    found = adapter.stats.label_prior
    assert found is not None
    assert (found.samples, found.on) == (900, True)
    assert found.corrected > found.relabelled > 0


def test_feedback_learns_from_corrected_predictions() -> None:
    banks = []
    for feedback in (False, True):
        adapter = resitta.adapt(reader_of_colours(), "rotta", label_prior="temporal", feedback=feedback)
        answers(adapter, colours(RUNS))
        banks.append(adapter.learner.memory())
    assert banks[0] is not None
    assert banks[1] is not None
    assert banks[0].labels.tolist() != banks[1].labels.tolist()


def test_feedback_needs_a_label_prior() -> None:
    with pytest.raises(BadSetting, match="pass label_prior='temporal' too"):
        resitta.adapt(reader_of_colours(), "rotta", feedback=True)


def test_a_pause_uses_the_label_prior_without_teaching_it() -> None:
    pixels = colours(RUNS)
    adapter = resitta.adapt(reader_of_colours(), "tent", label_prior="temporal")
    answers(adapter, pixels)
    before = adapter.state_dict()
    with adapter.paused():
        peeked = adapter(pixels[:30])
    assert same(before, adapter.state_dict())
    assert torch.equal(adapter(pixels[:30]), peeked)


@pytest.mark.parametrize("feedback", [False, True])
def test_in_the_background_the_label_prior_follows_the_calls(feedback: bool) -> None:
    pixels = colours(RUNS)
    settings: dict[str, Any] = {"label_prior": "temporal", "feedback": feedback, "lr": 1e-9}
    plain = resitta.adapt(reader_of_colours(), "resitta", **settings)
    adapter = resitta.adapt(reader_of_colours(), "resitta", **settings, background=True)
    expected, found = answers(plain, pixels), []
    for batch in torch.split(pixels, 30):
        found.append(adapter(batch))
        adapter.sync()
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-3, atol=1e-3)
    assert adapter.stats.label_prior == plain.stats.label_prior
    banks = [each.learner.memory() for each in (plain, adapter)]
    assert banks[0] is not None
    assert banks[1] is not None
    assert banks[0].labels.tolist() == banks[1].labels.tolist()


def test_a_saved_adapter_goes_on_with_its_label_prior(tmp_path: Any) -> None:
    pixels = colours(RUNS)
    adapter = resitta.adapt(reader_of_colours(), "resitta", label_prior="temporal", feedback=True)
    answers(adapter, pixels)
    adapter.save(tmp_path / "state")
    others = resitta.load(reader_of_colours(), tmp_path / "state"), copy.deepcopy(adapter)
    expected = answers(adapter, pixels)
    assert all(torch.equal(answers(other, pixels), expected) for other in others)
    adapter.reset()
    fresh = resitta.adapt(reader_of_colours(), "resitta", label_prior="temporal")
    assert adapter.stats.label_prior == fresh.stats.label_prior


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("method", ["source", "resitta"])
def test_a_frozen_camera_teaches_the_label_prior_nothing(method: str, guard: bool) -> None:
    labels = torch.arange(1500) // 50 % 3
    pixels = colours(labels)
    frozen = torch.cat([pixels[:510], pixels[509:510].expand(2000, -1, -1, -1), pixels[510:]])
    adapters = [resitta.adapt(reader_of_colours(), method, label_prior="temporal", guard=guard) for _ in range(2)]
    expected, found = answers(adapters[0], pixels)[510:1010], answers(adapters[1], frozen)[2510:3010]
    wrong = [(each.argmax(1) != labels[510:1010]).double().mean() for each in (expected, found)]
    assert abs(wrong[1] - wrong[0]) <= 0.03
    known = adapters[1].stats.label_prior
    assert known is not None
    assert known.skipped > 1950


def test_a_camera_that_stands_still_with_noise_does_not_make_the_label_prior_worse_than_nothing() -> None:
    labels = torch.arange(1500) // 50 % 3
    pixels, generator = colours(labels), torch.Generator().manual_seed(1)
    still = pixels[509:510] + 0.02 * torch.randn(2000, *pixels.shape[1:], generator=generator)
    adapter = resitta.adapt(reader_of_colours(), "source", label_prior="temporal")
    found = answers(adapter, torch.cat([pixels[:510], still.clamp(0, 1), pixels[510:]]))[2510:3010]
    with torch.no_grad():
        plain = adapter.source(pixels[510:1010])
    wrong = [(each.argmax(1) != labels[510:1010]).double().mean() for each in (plain, found)]
    assert wrong[1] < wrong[0]


def test_what_a_guard_rejects_does_not_teach_the_label_prior() -> None:
    images = spread_images(200, (3, 16, 16))
    noise = torch.rand(100, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for guard, skipped in ((False, 0), (True, 90)):
        adapter = resitta.adapt(spread_network(), "resitta", label_prior="temporal", guard=guard)
        answers(adapter, torch.cat([images, noise]), 20)
        found = adapter.stats.label_prior
        assert found is not None
        assert found.samples == 300
        assert skipped <= found.skipped <= skipped + 10 * guard


def test_events_tell_when_the_label_prior_begins_and_ends() -> None:
    events: list[Any] = []
    adapter = resitta.adapt(reader_of_colours(), "source", label_prior="temporal")
    adapter.listen(events.append)
    answers(adapter, colours(RUNS))
    assert [event.on for event in events if isinstance(event, resitta.events.LabelPriorSwitched)] == [True]


def test_a_step_that_fails_leaves_the_label_prior_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = colours(RUNS)
    adapter = resitta.adapt(reader_of_colours(), "resitta", label_prior="temporal")
    answers(adapter, pixels)
    before = adapter.state_dict()

    def broken(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(adapter.learner), "learn_from", broken)
        with pytest.raises(MemoryError):
            adapter(pixels[:30])
    assert same(before, adapter.state_dict())


@pytest.mark.parametrize("method", ["tent", "resitta", "cotta"])
def test_a_method_can_start_again_every_so_many_batches(method: str) -> None:
    pixels = colours(RUNS)
    adapter = resitta.adapt(reader_of_colours(), method, reset_every=10)
    answers(adapter, pixels[:300])
    assert adapter.samples == 300
    fresh = resitta.adapt(reader_of_colours(), method)
    assert same(dict(adapter.learner.named_parameters()), dict(fresh.learner.named_parameters()))
    updates = adapter.stats.updates
    assert updates > 0
    answers(adapter, pixels[300:600])
    assert adapter.stats.updates > updates


def test_a_saved_adapter_starts_again_when_it_would_have(tmp_path: Any) -> None:
    pixels = colours(RUNS)
    adapter = resitta.adapt(reader_of_colours(), "tent", reset_every=10)
    answers(adapter, pixels[:240])
    adapter.save(tmp_path / "state")
    other = resitta.load(reader_of_colours(), tmp_path / "state")
    assert torch.equal(answers(other, pixels[240:]), answers(adapter, pixels[240:]))
