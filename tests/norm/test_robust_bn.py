import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import BatchNorm
from resitta.norm.robust_bn import RobustBN

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]


def mixed(layer: BatchNorm, x: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(1-α) running + α batch statistics, with the gradient of the batch's share."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    mean = x.mean(axes, keepdim=True)
    var = ((x - mean) ** 2).mean(axes)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return (1 - alpha) * layer.running_mean + alpha * mean.flatten(), (1 - alpha) * layer.running_var + alpha * var


def test_in_inference_it_is_the_plain_layer(case: Case) -> None:
    layer, x = case
    torch.testing.assert_close(RobustBN(copy.deepcopy(layer), alpha=0.3)(x), layer(x))


def test_values_and_gradients_are_those_of_the_mixed_statistics(case: Case, by_formula: Formula) -> None:
    layer, x = case
    by_hand, found = x.clone().requires_grad_(), x.clone().requires_grad_()
    mean, var = mixed(layer, by_hand, alpha=0.3)
    expected = by_formula(layer, by_hand, mean, var)
    wrapped = RobustBN(copy.deepcopy(layer), alpha=0.3)
    wrapped.updating = True
    output = wrapped(found)
    torch.testing.assert_close(output, expected)
    expected_gradients = torch.autograd.grad((expected**3).sum(), [by_hand, layer.weight])
    gradients = torch.autograd.grad((output**3).sum(), [found, wrapped.layer.weight])
    torch.testing.assert_close(gradients, expected_gradients)
    torch.testing.assert_close(wrapped.statistics(), (mean.detach(), var.detach()))
    assert not any(statistic.requires_grad for statistic in wrapped.statistics())


def test_successive_batches_form_a_moving_average() -> None:
    wrapped = RobustBN(nn.BatchNorm1d(1).double().eval(), alpha=0.25)
    wrapped.updating = True
    mean, var = 0.0, 1.0
    for low, high in [(1.0, 3.0), (0.0, 8.0), (5.0, 5.0)]:
        wrapped(torch.tensor([[low], [high]]).double())
        mean, var = 0.75 * mean + 0.25 * (low + high) / 2, 0.75 * var + 0.25 * ((high - low) / 2) ** 2
    torch.testing.assert_close(torch.cat(wrapped.statistics()).tolist(), [mean, var])


def test_the_unwrapped_layer_predicts_the_same(case: Case) -> None:
    layer, x = case
    wrapped = RobustBN(layer, alpha=0.3)
    wrapped.updating = True
    wrapped(x)
    wrapped.updating = False
    expected = wrapped(x)
    torch.testing.assert_close(wrapped.unwrap()(x), expected)
