import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from resitta.training.soft_likelihood import follow, normalized, sample_weights, soft_likelihood_ratio


def by_hand(logits: list[float]) -> float:
    """ROID's loss of one sample: -Σ q log(q / (1 - q) + 1e-5) with q = min(p, .99)."""
    highest = max(logits)
    total = sum(math.exp(value - highest) for value in logits)
    clipped = [min(math.exp(value - highest) / total, 0.99) for value in logits]
    return -sum(q * math.log(q / (1 - q) + 1e-5) for q in clipped)


@given(st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=1, max_size=5))
@settings(deadline=None, max_examples=50)
def test_it_is_roid_s_formula(rows: list[list[float]]) -> None:
    found = soft_likelihood_ratio(torch.tensor(rows, dtype=torch.float64))
    assert found.tolist() == pytest.approx([by_hand(row) for row in rows], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("row", [[1e4, 0.0, -1e4], [1e30, -1e30, 0.0], [0.0, -torch.inf, 0.0], [88.0, 88.0, -88.0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extreme_logits_have_finite_losses_and_gradients(row: list[float], dtype: torch.dtype) -> None:
    logits = torch.tensor([row], dtype=dtype, requires_grad=True)
    loss = soft_likelihood_ratio(logits)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_a_certain_prediction_is_not_driven_further_and_others_are() -> None:
    logits = torch.tensor([[20.0, 0.0], [1.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(soft_likelihood_ratio(logits).sum(), logits)
    assert gradient[0].abs().max() < 1e-6
    assert gradient[1, 0] < -0.1  # a descent makes it more certain


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8))
@settings(deadline=None, max_examples=50)
def test_values_are_scaled_to_the_unit_interval(values: list[float]) -> None:
    low, high = min(values), max(values)
    expected = [(value - low) / (high - low) if high > low else 0.0 for value in values]
    assert normalized(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("logits", [torch.zeros(6, 4), torch.ones(1, 4) * torch.arange(4.0)])
def test_samples_that_do_not_differ_are_all_kept_with_weight_one(logits: Tensor) -> None:
    weights, kept = sample_weights(logits, torch.full((4,), 0.25), 1 / 3)
    assert kept.all()
    assert torch.equal(weights, torch.ones(len(logits)))


def test_at_least_one_sample_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 3, 50):
        for _ in range(50):
            _, kept = sample_weights(torch.randn(count, 4, generator=generator), torch.full((4,), 0.25), 1 / 3)
            assert 1 <= kept.sum() <= count
    assert normalized(torch.tensor([2.0])).tolist() == [0.0]


def test_the_mean_prediction_leaves_out_what_is_not_finite() -> None:
    mean = torch.tensor([0.5, 0.5])
    follow(mean, torch.tensor([[torch.nan, 0.0], [9.0, -9.0]]), beta=0.9)
    assert mean.tolist() == [0.5, 0.5]
    follow(mean, torch.tensor([[0.0, 0.0], [30.0, -30.0]]), beta=0.5)
    assert mean.tolist() == pytest.approx([0.625, 0.375])
