import copy

import pytest
import torch
from torch import nn

from resitta.accel.frozen_bn import frozen_bn, is_replaceable
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
