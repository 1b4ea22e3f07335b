import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import BatchNorm, batch_moments
from resitta.norm.resibn import ResiBN, align, soft_align, wasserstein

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]


def updating(layer: BatchNorm, nu_b: float) -> ResiBN:
    wrapped = ResiBN(layer, nu_b)
    wrapped.updating = True
    return wrapped


def statistics(layer: BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean.clone(), layer.running_var.clone()


def test_an_updating_pass_moves_the_statistics_and_normalises_with_the_moved_ones(
    case: Case, by_formula: Formula
) -> None:
    layer, x = case
    (mean, var), (batch_mean, batch_var) = statistics(layer), batch_moments(x)
    moved = 0.7 * mean + 0.3 * batch_mean, 0.7 * var + 0.3 * batch_var
    wrapped = updating(layer, nu_b=0.3)
    torch.testing.assert_close(wrapped(x), by_formula(layer, x, *moved))
    torch.testing.assert_close(wrapped.statistics(), moved)


def test_an_inference_pass_normalises_with_the_target_statistics(case: Case, by_formula: Formula) -> None:
    layer, x = case
    wrapped = updating(layer, nu_b=0.3)
    wrapped(x)
    wrapped.updating = False
    target = copy.deepcopy(wrapped.statistics())
    torch.testing.assert_close(wrapped(x + 1), by_formula(layer, x + 1, *target))
    torch.testing.assert_close(wrapped.statistics(), target, rtol=0, atol=0)


def test_no_gradient_flows_through_the_statistics(case: Case) -> None:
    layer, x = case
    wrapped = updating(layer, nu_b=0.3)
    x.requires_grad_()
    wrapped(x).square().sum().backward()
    mean, var = wrapped.statistics()
    assert not mean.requires_grad
    assert not var.requires_grad
    shape = [1, -1] + [1] * (x.ndim - 2)
    scale = (layer.weight / (var + layer.eps).sqrt()).view(shape)
    constant_statistics = 2 * ((x - mean.view(shape)) * scale + layer.bias.view(shape)) * scale
    torch.testing.assert_close(x.grad, constant_statistics.detach())


def test_a_graph_outlives_later_updates() -> None:
    wrapped = updating(nn.BatchNorm1d(2).eval(), nu_b=0.5)
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    loss = wrapped(x).square().sum()
    expected = torch.autograd.grad(loss, wrapped.layer.weight, retain_graph=True)
    wrapped(x + 1)
    torch.testing.assert_close(torch.autograd.grad(loss, wrapped.layer.weight), expected)


def test_statistics_keep_their_precision_under_half_precision_activations() -> None:
    layer = nn.BatchNorm1d(1).eval()
    x = torch.linspace(0, 1, 257)[:, None].bfloat16()
    wrapped = updating(layer, nu_b=1.0)
    wrapped(x)
    mean, var = wrapped.statistics()
    assert mean.dtype == var.dtype == torch.float32
    torch.testing.assert_close(mean.item(), x.double().mean().item(), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.item(), x.double().var(correction=0).item(), rtol=1e-6, atol=0)


def test_alignment_descends_the_squared_distance_in_mean_and_deviation() -> None:
    rand = torch.rand(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    mean, var, source_mean, source_var = rand
    free_mean, free_std = mean.clone().requires_grad_(), var.sqrt().requires_grad_()
    distance = (free_mean - source_mean) ** 2 + (free_std - source_var.sqrt()) ** 2
    distance.sum().backward()
    assert free_mean.grad is not None
    assert free_std.grad is not None
    expected = mean - 0.03 * free_mean.grad, (var.sqrt() - 0.03 * free_std.grad) ** 2
    torch.testing.assert_close(soft_align(mean, var, source_mean, source_var, eta=0.03), expected)


def test_alignment_does_not_inflate_dead_channels() -> None:
    zero, tiny = torch.zeros(1), torch.tensor([1e-16])
    _, var = soft_align(zero, zero, zero, zero, eta=0.05)
    assert var.item() == 0
    _, var = soft_align(zero, tiny, zero, tiny, eta=0.05)
    torch.testing.assert_close(var, tiny, rtol=1e-6, atol=0)


def test_the_distance_is_that_of_the_paper() -> None:
    rand = torch.rand(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    columns = zip(*rand.tolist(), strict=True)
    squares = [(ms - mt) ** 2 + vs + vt - 2 * math.sqrt(vs) * math.sqrt(vt) for mt, vt, ms, vs in columns]
    torch.testing.assert_close(wasserstein(*rand).item(), math.sqrt(sum(squares)))
    assert wasserstein(rand[0], rand[1], rand[0], rand[1]).item() == 0


@pytest.mark.parametrize(("eta", "source_share"), [(0.01, 0.29), (0.05, 0.69)])
def test_constant_batches_end_at_the_mix_of_source_and_batch_that_the_rates_imply(
    eta: float, source_share: float
) -> None:
    nu_b = 0.05
    share = 2 * eta / (1 - (1 - 2 * eta) * (1 - nu_b))
    assert round(share, 2) == source_share
    layer = nn.BatchNorm1d(2).double().eval()
    layer.running_mean, layer.running_var = torch.tensor([1.0, -2.0]).double(), torch.tensor([1.0, 4.0]).double()
    wrapped = updating(layer, nu_b)
    x = torch.tensor([[3.0, 5.0], [7.0, 5.0]]).double()  # means 5 and 5, variances 4 and 0
    stds = [1.0, 2.0]
    for _ in range(400):
        wrapped(x)
        align([wrapped], eta)
        for channel, (batch_var, source_std) in enumerate([(4.0, 1.0), (0.0, 2.0)]):
            std = math.sqrt((1 - nu_b) * stds[channel] ** 2 + nu_b * batch_var)
            stds[channel] = std - 2 * eta * (std - source_std)
    mean, var = wrapped.statistics()
    torch.testing.assert_close(mean.tolist(), [share * 1 + (1 - share) * 5, share * -2 + (1 - share) * 5])
    torch.testing.assert_close(var.tolist(), [std**2 for std in stds])


def test_without_alignment_the_source_is_forgotten() -> None:
    wrapped = updating(nn.BatchNorm1d(1).double().eval(), nu_b=0.05)
    for _ in range(600):
        wrapped(torch.tensor([[4.0], [6.0]]).double())
        align([wrapped], eta=0.0)
    torch.testing.assert_close(torch.cat(wrapped.statistics()), torch.tensor([5.0, 1.0]).double())


def test_the_source_statistics_are_constant_saved_and_moved(case: Case) -> None:
    layer, x = case
    mean, var = statistics(layer)
    wrapped = updating(layer, nu_b=0.3)
    wrapped(x)
    align([wrapped], eta=0.1)
    state = wrapped.state_dict()
    torch.testing.assert_close((state["source_mean"], state["source_var"]), (mean, var), rtol=0, atol=0)
    torch.testing.assert_close((state["layer.running_mean"], state["layer.running_var"]), wrapped.statistics())
    wrapped.float()
    assert {tensor.dtype for tensor in (*wrapped.statistics(), wrapped.source_mean)} == {torch.float32}
    align([wrapped], eta=0.1)
