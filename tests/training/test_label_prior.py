from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.training.label_prior import TemporalPrior


def stream(labels: Tensor, *, sharpness: float = 2.0, bias: float = 0.0, seed: int = 0) -> Tensor:
    """Logits of a network that is too certain, as networks are on corrupted images; with a bias towards class 0."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(labels.max()) + 1
    noise = torch.randn((len(labels), classes), generator=generator, dtype=torch.float64)
    logits = 1.5 * sharpness * (sharpness * torch.nn.functional.one_hot(labels, classes) + noise)
    logits[:, 0] += bias
    return logits


def runs(samples: int, classes: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(classes, (-(-samples // length),), generator=generator).repeat_interleave(length)[:samples]


def shuffled(samples: int, classes: int) -> Tensor:
    return torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(7))


def error(logits: Tensor, labels: Tensor, skip: int = 0) -> float:
    return float((logits.argmax(1) != labels)[skip:].double().mean())


def correct(logits: Tensor, batch: int = 64, **options: Any) -> tuple[Tensor, TemporalPrior]:
    prior = TemporalPrior(**options)
    return torch.cat([prior(part) for part in torch.split(logits, batch)]), prior


@pytest.mark.parametrize("length", [3, 10, 100, 300, 800])
def test_runs_of_a_class_lower_the_error(length: int) -> None:
    labels = runs(4000 if length < 500 else 8000, 10, length)
    logits = stream(labels)
    found, _ = correct(logits)
    assert error(found, labels, 200) < {3: 0.85, 800: 0.8}.get(length, 0.5) * error(logits, labels, 200)


@pytest.mark.parametrize("bias", [0.0, 3.0, 6.0])
@pytest.mark.parametrize("classes", [5, 100])
def test_a_shuffled_stream_is_left_as_it_is_also_by_a_biased_network(classes: int, bias: float) -> None:
    logits = stream(shuffled(3000, classes), bias=bias)
    found, prior = correct(logits)
    assert torch.equal(found, logits)
    assert not prior.on
    assert prior.stats.corrected == 0


@pytest.mark.parametrize("period", [200, 500, 1000])
@pytest.mark.parametrize("bias", [1.5, 3.0])
def test_a_bias_that_changes_is_not_mistaken_for_classes_that_come_in_runs(period: int, bias: float) -> None:
    labels = shuffled(6000, 10)
    logits = stream(labels)
    for start in range(0, 6000, period):
        logits[start : start + period, start // period % 10] += bias
    found, _ = correct(logits)
    assert error(found, labels) <= error(logits, labels) + 0.005


def test_pairs_among_a_thousand_classes() -> None:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
    labels = order.repeat_interleave(2)
    logits = stream(labels, sharpness=4.5)
    found, _ = correct(logits)
    assert error(found, labels, 200) < 0.93 * error(logits, labels, 200)


def test_it_ends_when_the_stream_is_shuffled() -> None:
    labels = torch.cat([runs(2000, 10, 50), shuffled(3000, 10)])
    logits = stream(labels)
    found, prior = correct(logits)
    assert not prior.on
    assert error(found[2000:], labels[2000:], 1000) <= error(logits[2000:], labels[2000:], 1000) + 0.005


@pytest.mark.parametrize("batch", [1, 7, 25, 200])
def test_batches_make_no_difference(batch: int) -> None:
    logits = stream(runs(600, 10, 20))
    torch.testing.assert_close(correct(logits, batch)[0], correct(logits, 64)[0], rtol=1e-5, atol=1e-5)


def test_it_is_causal_and_with_lookahead_only_within_a_batch() -> None:
    logits = stream(runs(640, 10, 20))
    other = logits.clone()
    other[600:] = other[600:].flip(1)
    for lookahead, same in (("none", 600), ("batch", 576)):
        found, changed = (correct(each, 64, lookahead=lookahead)[0] for each in (logits, other))
        assert torch.equal(found[:same], changed[:same])


def test_lookahead_helps() -> None:
    labels = runs(3000, 10, 30)
    logits = stream(labels, sharpness=1.0)
    causal, ahead = (correct(logits, 64, lookahead=lookahead)[0] for lookahead in ("none", "batch"))
    assert error(ahead, labels) < 0.85 * error(causal, labels)


def test_answers_are_log_probabilities_of_the_logits_type() -> None:
    logits = stream(runs(600, 10, 20)).float()
    found, prior = correct(logits)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[-1].exp().sum().item(), 1.0)
    assert prior.stats.relabelled > 0


def test_peeking_answers_the_same_and_learns_nothing() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    before = prior.get_extra_state()
    peeked = prior.peek(logits[:50])
    after = prior.get_extra_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert torch.equal(prior(logits[:50]), peeked)


def test_rows_that_are_not_finite_are_passed_through() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    _, other = correct(logits)
    broken = logits[:3].clone()
    broken[1] = torch.nan
    found = prior(broken)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], other(logits[[0, 2]]))


@pytest.mark.parametrize("certainty", [0.4, 0.7, 1.0, 1.4])
def test_how_certain_the_network_is_of_itself_makes_little_difference(certainty: float) -> None:
    labels = runs(4000, 10, 10)
    logits = stream(labels)
    usual, found = (correct(scale * logits)[0] for scale in (1.0, certainty))
    assert error(found, labels, 500) < error(usual, labels, 500) + 0.03
    assert error(found, labels, 500) < 0.5 * error(logits, labels, 500)


def test_masked_classes_stay_impossible() -> None:
    logits = stream(runs(600, 10, 20))
    logits[:, 4] = -torch.inf
    found, _ = correct(logits)
    assert (found.argmax(1) != 4).all()
    assert not found.isnan().any()


def test_a_state_continues_and_a_wrong_one_is_refused() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    other = TemporalPrior()
    state = prior.get_extra_state()
    other.set_extra_state(state)
    assert torch.equal(prior(logits), other(logits))
    for broken in ({**state, "base": state["base"][:, :, :4]}, {**state, "strength": state["strength"] * torch.nan}):
        with pytest.raises(BadState, match="label prior must be finite"):
            other.set_extra_state(broken)


def test_a_frozen_camera_does_not_lock_it_in() -> None:
    labels = runs(2000, 10, 40)
    logits = stream(labels)
    frozen = torch.cat([logits[:1000], logits[1000:1001].expand(3000, -1), logits[1000:]])
    found = correct(frozen)[0][4000:]
    assert error(found, labels[1000:], 150) < error(logits[1000:], labels[1000:], 150)
    assert error(found[:150], labels[1000:1150]) <= error(logits[1000:1150], labels[1000:1150]) + 0.12
