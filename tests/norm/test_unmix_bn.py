import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta.accel.instance_moments import instance_moments
from resitta.errors import UnsuitableModel
from resitta.norm.bn_layers import BatchNorm, updating_statistics
from resitta.norm.unmix_bn import (
    UnMixBN,
    first_components,
    unmix_rate,
    unmixed,
    updating_components,
)

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]
Table = list[list[float]]


def wrapped(layer: BatchNorm, components: int = 3, seed: int = 0, batch_size: int = 64) -> UnMixBN:
    generator = torch.Generator().manual_seed(seed)
    return UnMixBN(copy.deepcopy(layer), generator=generator, components=components, batch_size=batch_size)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def by_hand(x: Tensor, m: Table, v: Table, rate: float) -> tuple[Tensor, Tensor, Table, Table]:
    """Each sample's statistics and the components after the update: numbers only."""
    count, channels, parts = len(x), x.shape[1], len(m)
    mean_out, var_out = x.new_empty(count, channels), x.new_empty(count, channels)
    new_m, new_v = copy.deepcopy(m), copy.deepcopy(v)
    for b in range(count):
        values = [x[b, c].flatten().tolist() for c in range(channels)]
        mu = [sum(one) / len(one) for one in values]
        var = [sum((y - center) ** 2 for y in one) / len(one) for one, center in zip(values, mu, strict=True)]
        exps = [math.exp(cosine(mu, part) / 0.07) for part in m]
        p = [e / sum(exps) for e in exps]
        for c in range(channels):
            mixed_m = [(1 - p[k]) * m[k][c] + p[k] * mu[c] for k in range(parts)]
            mixed_v = [(1 - p[k]) * v[k][c] + p[k] * var[c] for k in range(parts)]
            mean_out[b, c] = sum(mixed_m) / parts
            squares = sum(one**2 for one in mixed_m) / parts
            var_out[b, c] = sum(mixed_v) / parts + squares - float(mean_out[b, c]) ** 2
            for k in range(parts):
                new_m[k][c] += rate / count * p[k] * (mu[c] - m[k][c])
                new_v[k][c] += rate / count * p[k] * (var[c] - v[k][c])
    return mean_out, var_out, new_m, new_v


def has_instances(layer: BatchNorm) -> bool:
    return not isinstance(layer, nn.BatchNorm1d)


@pytest.mark.parametrize(("batch_size", "rate"), [(64, 0.1), (1, 1 - 0.9 ** (1 / 64))])
def test_an_updating_pass_by_hand(case: Case, by_formula: Formula, batch_size: int, rate: float) -> None:
    layer, x = case
    found = wrapped(layer, batch_size=batch_size)
    m, v = found.component_means.tolist(), found.component_vars.tolist()
    with updating_components(found):
        y = found(x)
    if not has_instances(layer):
        torch.testing.assert_close(y, layer(x))
        assert (found.component_means.tolist(), found.component_vars.tolist()) == (m, v)
        return
    mean, var, new_m, new_v = by_hand(x, m, v, rate)
    shape = (*mean.shape, *[1] * (x.ndim - 2))
    torch.testing.assert_close(y, by_formula(layer, x, mean.view(shape), var.view(shape)))
    torch.testing.assert_close(found.component_means, torch.tensor(new_m).double())
    torch.testing.assert_close(found.component_vars, torch.tensor(new_v).double())
    assert not found.updating


def test_a_plain_pass_gives_the_same_and_moves_nothing(case: Case) -> None:
    layer, x = case
    found = wrapped(layer)
    before = copy.deepcopy(found.state_dict())
    y = found(x)
    torch.testing.assert_close(found.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([found(one) for one in torch.split(x, 1)]), y)
    with updating_components(found):
        torch.testing.assert_close(found(x), y, rtol=0, atol=0)
    moved = not torch.equal(found.component_means, before["component_means"])
    assert moved == has_instances(layer)


def test_the_mixture_has_the_source_s_variance_and_nearly_its_mean() -> None:
    mean, var = torch.full((20_000,), 3.0).double(), torch.full((20_000,), 4.0).double()
    means, variances = first_components(mean, var, 16, torch.Generator().manual_seed(0))
    assert means.shape == variances.shape == (16, 20_000)
    assert (variances == 2).all()
    total = variances.mean(0) + means.var(0, correction=0)
    assert float(total.mean()) == pytest.approx(4, rel=0.01)
    deviation = (means.mean(0) - mean).std() / 2
    assert float(deviation) == pytest.approx(math.sqrt(0.5 * 16 / 15 / 16), rel=0.03)


def test_one_component_begins_as_the_source_and_takes_each_sample_s_statistics() -> None:
    layer = nn.BatchNorm2d(2).double().eval()
    found = wrapped(layer, components=1)
    assert torch.equal(found.component_means[0], found.mean)
    assert torch.equal(found.component_vars[0], found.var)
    x = torch.randn(3, 2, 4, 4).double()
    expected = nn.functional.instance_norm(x)
    torch.testing.assert_close(found(x), expected)


def test_statistics_are_the_mixture_s() -> None:
    found = wrapped(nn.BatchNorm2d(2).double().eval())
    mean, var = found.statistics()
    torch.testing.assert_close(mean, found.component_means.mean(0))
    second = (found.component_vars + found.component_means**2).mean(0)
    torch.testing.assert_close(var, second - mean**2)
    before = copy.deepcopy(found.state_dict())
    with updating_statistics(found):
        found(torch.randn(3, 2, 4, 4).double())
    assert not torch.equal(found.component_means, before["component_means"])  # nothing copies the old ones back


def test_gradients_flow_through_the_instance_statistics_alone() -> None:
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)

    def output(mean: Tensor, var: Tensor) -> Tensor:
        m, v = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double(), torch.ones(2, 2).double()
        center, spread, means, variances = unmixed(mean, var, m, v)
        assert not means.requires_grad
        assert not variances.requires_grad
        return center + spread

    mean, var = (moment.detach().requires_grad_() for moment in instance_moments(x))
    gradient = torch.autograd.grad(output(mean, var).sum(), var)[0]
    torch.testing.assert_close(gradient, torch.full_like(gradient, 0.5))  # mean_k p_k, whatever p
    found = wrapped(nn.BatchNorm2d(2).double().eval())
    with updating_components(found):
        found(found(x)).square().sum().backward()  # components that moved in place are not part of the graph
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not found.component_means.requires_grad


def test_one_position_has_no_instance_statistics() -> None:
    layer = nn.BatchNorm2d(4).double().eval()
    found, x = wrapped(layer), torch.randn(5, 4, 1, 1).double()
    before = found.component_means.clone()
    with updating_components(found):
        torch.testing.assert_close(found(x), layer(x))
    assert torch.equal(found.component_means, before)


def test_a_constant_map_is_normalised_by_the_components() -> None:
    found = wrapped(nn.BatchNorm2d(3).double().eval())
    assert found(torch.zeros(2, 3, 4, 4).double()).isfinite().all()


def test_rates() -> None:
    assert unmix_rate(0.1, 64, 64) == 0.1
    assert unmix_rate(0.1, 64, 16) == pytest.approx(1 - 0.9**4)
    assert wrapped(nn.BatchNorm2d(1, momentum=0.3)).rate == 0.3
    assert wrapped(nn.BatchNorm2d(1, momentum=None)).rate == 0.1


def test_half_precision_activations_use_components_in_float32() -> None:
    found, x = wrapped(nn.BatchNorm2d(3).eval()), torch.rand(4, 3, 5, 5)
    low = found(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), found(x), atol=0.05, rtol=0.05)
    assert found.to(torch.bfloat16).component_means.dtype == torch.float32


def test_running_statistics_are_needed() -> None:
    with pytest.raises(UnsuitableModel, match="track_running_stats"):
        wrapped(nn.BatchNorm2d(3, track_running_stats=False))
