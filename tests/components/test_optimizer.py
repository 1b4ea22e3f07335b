import copy

import pytest
import torch
from torch import Tensor, nn

from resitta.components.optimizer import Adam


def weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(3, 2), (4,)]]


def loss(parameters: list[nn.Parameter]) -> Tensor:
    return torch.stack([(parameter**2 + parameter.sin()).sum() for parameter in parameters]).sum()


def by_hand(value: float, gradients: list[float], lr: float) -> float:
    """Adam's equations for one number."""
    first = second = 0.0
    for step, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        value -= lr * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
    return value


def test_steps_follow_the_equations() -> None:
    weight, gradients = nn.Parameter(torch.ones(1, dtype=torch.float64)), [3.0, -1.0, 0.5, 2.0]
    optimizer = Adam([weight], lr=0.1)
    for gradient in gradients:
        optimizer.descend((weight * gradient).sum())
    torch.testing.assert_close(weight.item(), by_hand(1.0, gradients, lr=0.1))


def test_moments_have_the_precision_of_their_parameters_whatever_the_optimizer_was_converted_to() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(1e-6 * loss(parameters))
    before = copy.deepcopy(optimizer.get_extra_state()["state"])
    optimizer.half()
    optimizer.match_precision()
    torch.testing.assert_close(optimizer.get_extra_state()["state"], before, rtol=0, atol=0)
    assert optimizer.skipped.dtype == torch.float32
    optimizer.descend(loss(parameters))


def test_no_gradient_is_left_over_or_taken_along() -> None:
    (weight,) = parameters = [nn.Parameter(torch.ones(1))]
    weight.grad = torch.full((1,), 1e6)
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(-weight.sum())
    assert weight.item() > 1
    assert weight.grad is None


def test_with_nothing_to_train_a_step_does_nothing() -> None:
    optimizer = Adam([], lr=0.1)
    optimizer.descend(torch.ones(()))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.double()


def test_a_loaded_optimizer_goes_on_as_if_it_had_not_been() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    loaded = Adam(twins, lr=0.1)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.descend(loss(parameters))
        loaded.descend(loss(twins))
    torch.testing.assert_close(twins, parameters, rtol=0, atol=0)


def test_a_snapshot_can_be_loaded_twice() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    snapshot = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(snapshot)
    optimizer.load_state_dict(snapshot)
    optimizer.descend(loss(parameters))
    moments, expected = snapshot["_extra_state"]["state"], before["_extra_state"]["state"]
    for index in range(len(parameters)):
        torch.testing.assert_close(moments[index], expected[index], rtol=0, atol=0)


def test_a_conversion_carries_the_moments_along() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    for parameter in parameters:
        parameter.data = parameter.data.double()
    optimizer.double()
    optimizer.match_precision()
    assert optimizer.adam is not None
    moments = [moment for state in optimizer.adam.state.values() for moment in (state["exp_avg"], state["exp_avg_sq"])]
    assert {moment.dtype for moment in moments} == {torch.float64}
    optimizer.descend(loss(parameters))


def test_a_gradient_laid_out_differently_is_the_same_gradient() -> None:
    weight = nn.Parameter(torch.zeros(2, 3, 4, 4))
    wanted = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    adam = Adam([weight], lr=0.1)
    adam.step([wanted.contiguous(memory_format=torch.channels_last)], torch.zeros(()))
    torch.testing.assert_close(weight.detach(), -0.1 * wanted.sign(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_is_skipped_and_counted(value: float) -> None:
    weight = nn.Parameter(torch.ones(2))
    adam = Adam([weight], lr=0.1)
    adam.descend(weight.sum())
    before = weight.detach().clone()
    adam.descend((weight * value).sum())
    assert torch.equal(weight.detach(), before)
    assert adam.skipped.item() == 1
    adam.descend(weight.sum())
    torch.testing.assert_close(weight.detach(), before - 0.1)  # the moments were left alone as well
