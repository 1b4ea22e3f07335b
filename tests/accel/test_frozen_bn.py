import copy
from typing import Any

import pytest
import torch
from torch import nn

from resitta.accel import frozen_bn as module
from resitta.accel.frozen_bn import Share, frozen_bn, is_replaceable
from resitta.norm.robust_bn import RobustBN

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels are CUDA's")


def test_only_ordinary_layers_in_training_that_nobody_watches() -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    assert is_replaceable(nn.BatchNorm1d(2))
    assert not is_replaceable(Activated(2))
    assert not is_replaceable(nn.SyncBatchNorm(2))
    assert not is_replaceable(nn.BatchNorm2d(2).requires_grad_(False))
    watched = nn.BatchNorm2d(2)
    watched.register_forward_hook(lambda module, inputs, output: None)
    assert not is_replaceable(watched)
    with torch.no_grad():
        assert not is_replaceable(nn.BatchNorm2d(2))


def reduce_by_formula(grad: Any, x: Any, mean: Any, inverse_std: Any, weight: Any, *_: bool) -> Any:
    """torch.batch_norm_backward_reduce: Σ∂y, Σ∂y(x-μ), ∂γ and ∂β."""
    total = grad.sum((0, 2, 3))
    moment = (grad * (x - mean.view(-1, 1, 1))).sum((0, 2, 3))
    return total, moment, moment * inverse_std, total


def elemt_by_formula(grad: Any, x: Any, *given: Any) -> Any:
    """torch.batch_norm_backward_elemt: γ s (∂y - Σ∂y/n - (x-μ) s² Σ∂y(x-μ)/n)."""
    mean, s, weight, total, moment = (part.view(-1, 1, 1) for part in given[:5])
    count = given[5].sum()
    return weight * s * (grad - total / count - (x - mean) * s**2 * moment / count)


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_kernels_of_cuda_are_given_what_makes_the_same_gradient(
    per_sample: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer, centre = nn.BatchNorm2d(3).double().eval(), torch.randn(3).double()
    nn.init.normal_(layer.weight)
    rates = torch.rand(5, 1).double()
    share = Share(rates * centre, rates, 2 * rates) if per_sample else Share(centre, mean_rate=0.3, var_rate=0.2)
    assert share.is_per_channel != per_sample
    x, weights = torch.randn(5, 3, 4, 4).double().requires_grad_(), torch.randn(5, 3, 4, 4).double()
    mean, var = torch.randn(3).double(), torch.rand(3).double() + 0.1
    found = []
    for backward in (module._backward, module._backward_on_cuda):
        monkeypatch.setattr(module, "_backward", backward)
        monkeypatch.setattr(torch, "batch_norm_backward_reduce", reduce_by_formula)
        monkeypatch.setattr(torch, "batch_norm_backward_elemt", elemt_by_formula)
        y = frozen_bn(layer, x, mean, var, share)
        found.append(torch.autograd.grad((y * weights).sum(), (x, layer.weight, layer.bias)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@needs_cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_are_those_of_the_layer(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(8).cuda().eval()
    mean, var = torch.randn(8, device="cuda"), torch.rand(8, device="cuda") + 0.1
    nn.init.normal_(layer.weight)
    layer.running_mean, layer.running_var = mean, var
    x = torch.randn(4, 8, 5, 6, device="cuda").contiguous(memory_format=layout).requires_grad_()
    weights = torch.randn_like(x)
    ours, theirs = frozen_bn(layer, x, mean, var), layer(x)
    torch.testing.assert_close(ours, theirs)
    wanted = x, layer.weight, layer.bias
    grads = [torch.autograd.grad((y * weights).sum(), wanted) for y in (ours, theirs)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@needs_cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_batch_s_share_in_the_statistics_has_its_gradient(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 5, 6).contiguous(memory_format=layout)
    layer = nn.BatchNorm2d(8).eval()
    nn.init.normal_(layer.weight)
    weights = torch.randn_like(x)
    results = []
    for device in ("cpu", "cuda"):
        wrapped = RobustBN(copy.deepcopy(layer).to(device), alpha=0.3)
        wrapped.updating = True
        value = x.to(device).requires_grad_()
        output = wrapped(value)
        grads = torch.autograd.grad((output * weights.to(device)).sum(), (value, wrapped.layer.weight))
        results.append([tensor.cpu() for tensor in (output, *grads, *wrapped.statistics())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
