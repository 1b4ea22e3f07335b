import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import BatchNorm
from resitta.norm.instance_aware_bn import InstanceAwareBN, soft_shrink

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]


def shrunk(value: float, by: float) -> float:
    return math.copysign(max(abs(value) - by, 0), value)


def corrected(x: Tensor, means: list[float], variances: list[float], k: float, eps: float) -> tuple[Tensor, Tensor]:
    """Each sample's corrected statistics, channel by channel, from NOTE's equations."""
    corrections = x.new_empty(2, *x.shape[:2])
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            values = x[n, c].flatten().tolist()
            positions = len(values)
            mean = sum(values) / positions
            var = sum((value - mean) ** 2 for value in values) / (positions - 1)
            mean_error = math.sqrt((variances[c] + eps) / positions)
            var_error = (variances[c] + eps) * math.sqrt(2 / (positions - 1))
            corrections[0, n, c] = means[c] + shrunk(mean - means[c], k * mean_error)
            corrections[1, n, c] = max(0, variances[c] + shrunk(var - variances[c], k * var_error))
    shape = (*x.shape[:2], *[1] * (x.ndim - 2))
    return corrections[0].view(shape), corrections[1].view(shape)


def running(layer: BatchNorm) -> tuple[list[float], list[float]]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean.tolist(), layer.running_var.tolist()


def unbiased(x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.transpose(0, 1).flatten(1)
    return channels.mean(1), channels.var(1, correction=1)


def test_shrinking_stops_at_zero() -> None:
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    expected = torch.tensor([-2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
    torch.testing.assert_close(soft_shrink(x, torch.tensor(1.0)), expected)


@pytest.mark.parametrize("k", [0.0, 1.0, 4.0])
def test_inference_by_the_formula(case: Case, by_formula: Formula, k: float) -> None:
    layer, x = case
    expected = layer(x)
    if x.ndim > 2:  # one position alone has no statistics of its own
        expected = by_formula(layer, x, *corrected(x, *running(layer), k, layer.eps))
    torch.testing.assert_close(InstanceAwareBN(copy.deepcopy(layer), k=k, momentum=0.01)(x), expected)


@pytest.mark.parametrize(("values", "mean", "var"), [([0.0, 9.0] * 2, 4.25, 26.592), ([-5.0] * 4, -4.75, 0.40825)])
def test_a_sample_that_differs_for_sure_is_corrected(values: list[float], mean: float, var: float) -> None:
    """Four positions, k = .5, source statistics (0, 1): errors .5 and .816, so the thresholds are .25 and .408."""
    layer = nn.BatchNorm2d(1, eps=1e-12).double().eval()
    x = torch.tensor(values).double().view(1, 1, 2, 2)
    expected = (x - mean) / math.sqrt(var)
    found = InstanceAwareBN(layer, k=0.5, momentum=0.01)(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_with_a_large_k_it_is_the_plain_layer(case: Case) -> None:
    layer, x = case
    torch.testing.assert_close(InstanceAwareBN(copy.deepcopy(layer), k=1e6, momentum=0.01)(x), layer(x))


def test_each_sample_is_normalised_on_its_own(case: Case) -> None:
    layer, x = case
    wrapped = InstanceAwareBN(layer, k=1.0, momentum=0.01)
    torch.testing.assert_close(wrapped(x), torch.cat([wrapped(one) for one in torch.split(x, 1)]))


def test_updating_puts_the_batch_in_the_place_of_the_running_statistics(case: Case, by_formula: Formula) -> None:
    layer, x = case
    (means, variances), (mean, var) = running(layer), unbiased(x)
    wrapped = InstanceAwareBN(copy.deepcopy(layer), k=1.0, momentum=0.2)
    wrapped.updating = True
    batch = mean, var
    if x.ndim > 2:
        batch = corrected(x, mean.tolist(), var.tolist(), 1.0, layer.eps)
    torch.testing.assert_close(wrapped(x), by_formula(layer, x, *batch))
    followed = 0.8 * torch.tensor(means).double() + 0.2 * mean, 0.8 * torch.tensor(variances).double() + 0.2 * var
    torch.testing.assert_close(wrapped.statistics(), followed)


def test_gradients_flow_through_batch_and_instance_statistics() -> None:
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)

    def output(x: Tensor) -> Tensor:
        wrapped = InstanceAwareBN(nn.BatchNorm2d(2).double().eval(), k=0.1, momentum=0.2)
        wrapped.updating = True
        result: Tensor = wrapped(x)
        assert not any(statistic.requires_grad for statistic in wrapped.statistics())
        return result

    assert torch.autograd.gradcheck(output, [x])


def test_one_value_per_channel_leaves_the_statistics_alone() -> None:
    wrapped = InstanceAwareBN(nn.BatchNorm1d(2).eval(), k=4.0, momentum=0.5)
    wrapped.updating = True
    before = copy.deepcopy(wrapped.statistics())
    one = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(wrapped(one), nn.BatchNorm1d(2).eval()(one))
    torch.testing.assert_close(wrapped.statistics(), before, rtol=0, atol=0)
