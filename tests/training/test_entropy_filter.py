import math

import pytest
import torch

from resitta.conformance import tiny_network
from resitta.training.entropy_filter import EntropyFilter, certainty_weights, masked_mean, moved_mean
from resitta.training.network import Network


def test_the_mean_of_nothing_is_zero_and_has_no_gradient() -> None:
    values = torch.ones(3, requires_grad=True)
    mean = masked_mean(values, torch.zeros(3, dtype=torch.bool))
    assert mean.item() == 0
    assert torch.equal(torch.autograd.grad(mean, values)[0], torch.zeros(3))


def test_a_value_that_is_not_finite_spoils_the_mean_even_if_it_is_left_out() -> None:
    assert masked_mean(torch.tensor([1.0, torch.nan]), torch.tensor([True, False])).isnan()


def test_weights_have_no_gradient() -> None:
    entropies = torch.tensor([0.5], requires_grad=True)
    assert not certainty_weights(entropies, 1.0).requires_grad


def test_the_running_mean_ignores_what_is_left_out() -> None:
    rows, none = torch.tensor([[0.5, 0.5], [torch.nan, torch.nan]]), torch.tensor([False, False])
    mean = torch.tensor([0.8, 0.2])
    assert torch.equal(moved_mean(mean, rows, none), mean)
    torch.testing.assert_close(moved_mean(mean, rows, torch.tensor([True, False])), torch.tensor([0.77, 0.23]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_repetitions_are_left_out(dtype: torch.dtype) -> None:
    chosen = EntropyFilter(Network(tiny_network().to(dtype)), margin=0.4, epsilon=0.5)
    logits = torch.tensor([[9.0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=dtype)
    assert chosen.mean.dtype == torch.promote_types(dtype, torch.float32)
    loss, kept = chosen(logits[:1])
    assert kept
    value = -sum(p * math.log(p) for p in logits[0].double().softmax(0).tolist())
    assert loss.item() == pytest.approx(
        math.exp(0.4 * math.log(5) - value) * value, rel=0.15 if dtype == torch.bfloat16 else 1e-3
    )
    assert not chosen(logits[:1])[1]
    assert chosen.keep(logits, torch.tensor([True, True, True])).tolist() == [False, True, True]
    chosen.forget()
    assert chosen.keep(logits, torch.tensor([True, True, False])).tolist() == [True, True, False]
