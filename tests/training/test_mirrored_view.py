import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from resitta.training.mirrored_view import MirroredView, divergence, mean_prediction

SURE = 6 * torch.eye(4)
VAGUE = 2 * torch.eye(4)


def probabilities(logits: list[float]) -> list[float]:
    total = sum(math.exp(value - max(logits)) for value in logits)
    return [math.exp(value - max(logits)) / total for value in logits]


def in_nats(p: list[float]) -> float:
    return -sum(value * math.log(value) for value in p if value > 0)


@given(st.integers(0, 10**6), st.floats(0.1, 20))
@settings(deadline=None, max_examples=40)
def test_divergence_and_mean_by_hand(seed: int, scale: float) -> None:
    one, other = torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (2, 3, 5)))
    for row, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True)):
        p, q = probabilities(a), probabilities(b)
        middle = in_nats([(x + y) / 2 for x, y in zip(p, q, strict=True)])
        expected = max(0.0, middle - (in_nats(p) + in_nats(q)) / 2)
        assert divergence(one, other)[row].item() == pytest.approx(expected, abs=1e-9)
        geometric = [math.sqrt(x * y) for x, y in zip(p, q, strict=True)]
        found = mean_prediction(one, other)[row].softmax(0).tolist()
        assert found == pytest.approx([value / sum(geometric) for value in geometric])


def test_masked_classes_stay_masked_and_nothing_is_nan() -> None:
    masked = torch.tensor([[1.0, -torch.inf, 0.0]])
    assert mean_prediction(masked, torch.zeros(1, 3)).isfinite().all()
    assert mean_prediction(masked, torch.zeros(1, 3)).softmax(1)[0, 1] == 0
    assert divergence(masked, masked).tolist() == [0.0]


def watched(view: MirroredView, plain: Tensor, mirrored: Tensor, images: int) -> bool:
    """Show a view so many images, in batches of four of which it chooses, and return whether mirroring helps."""
    for _ in range(images // 4):
        view(plain, mirrored, view.chosen(4))
    return bool(view.helps)


def test_it_begins_with_mirroring() -> None:
    view = MirroredView()
    assert view.helps
    assert view.chosen(5).tolist() == [True] * 5


def test_it_turns_itself_off_where_predictions_disagree_and_on_again_where_they_agree() -> None:
    view = MirroredView()
    assert not watched(view, SURE, SURE.flip(0), 16)
    assert not watched(view, SURE, SURE, 512)  # one of 32 images is not enough to outweigh what was seen
    assert watched(view, SURE, SURE, 4096)


def test_it_turns_itself_off_where_mirrored_predictions_are_less_certain() -> None:
    ten = torch.eye(10)
    certain, uncertain = 3.5 * ten, 2.5 * ten
    view = MirroredView()
    assert (divergence(certain, uncertain) < 0.1).all()
    assert not bool(view(certain, uncertain, torch.ones(10)))
    assert bool(MirroredView()(uncertain, certain, torch.ones(10)))  # more certain is no reason


@pytest.mark.parametrize(("factor", "helps"), [(1.19, True), (1.21, False)])
def test_the_bound_on_the_entropy(factor: float, helps: bool) -> None:
    view = MirroredView()
    view.evidence.copy_(torch.tensor([1.0, factor, 0.0]))
    assert bool(view.helps) is helps


@pytest.mark.parametrize(("apart", "helps"), [(0.49, True), (0.51, False)])
def test_the_bound_on_the_divergence(apart: float, helps: bool) -> None:
    view = MirroredView()
    view.evidence.copy_(torch.tensor([1.1, 0.9, apart]))
    assert bool(view.helps) is helps


def test_while_off_one_of_32_images_is_mirrored() -> None:
    view = MirroredView()
    view(SURE, SURE.flip(0), torch.ones(4))
    chosen = []
    for size in (1, 7, 40, 12):
        chosen += view.chosen(size).tolist()
        view(*torch.zeros(2, size, 4), torch.zeros(size))
    assert [place + 4 for place, mirrored in enumerate(chosen) if mirrored] == [32]
    assert int(view.clock) == 64


def test_evidence_is_a_fading_sum_over_the_images_that_count() -> None:
    view, generator = MirroredView(), torch.Generator().manual_seed(0)
    expected = [0.0, 0.0, 0.0]
    for _ in range(5):
        plain, mirrored = torch.randn(2, 3, 4, generator=generator)
        weights = torch.tensor([1.0, 0.0, 1.0])
        mirrored[1] = torch.nan  # of an image that does not count
        view(plain, mirrored, weights)
        for _ in range(3):
            expected = [value * (1 - 1 / 2048) for value in expected]
        for row in (0, 2):
            entropies = [in_nats(probabilities(logits[row].tolist())) for logits in (plain, mirrored)]
            found = [*entropies, divergence(plain, mirrored)[row].item()]
            expected = [value + more for value, more in zip(expected, found, strict=True)]
    assert view.evidence.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_state_goes_on_and_evidence_stays_in_float32() -> None:
    view, other = MirroredView(), MirroredView()
    view(SURE, VAGUE.flip(0), torch.ones(4))
    other.load_state_dict(view.state_dict())
    assert torch.equal(other.evidence, view.evidence)
    assert int(other.clock) == 4
    before = view.evidence.clone()
    assert torch.equal(view.bfloat16().evidence, before)
    assert view.double().evidence.dtype == torch.float64
