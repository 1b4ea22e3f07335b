import pytest
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from resitta.norm.moments import batch_moments, moved_average

Case = tuple[_BatchNorm, Tensor]
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels are CUDA's")


def plain_moments(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and biased variance of each channel, value by value."""
    channels = [[value for sample in x for value in sample[c].flatten().tolist()] for c in range(x.shape[1])]
    means = [sum(values) / len(values) for values in channels]
    pairs = zip(channels, means, strict=True)
    return means, [sum((value - mean) ** 2 for value in values) / len(values) for values, mean in pairs]


def test_moments_are_those_counted_value_by_value(case: Case) -> None:
    _, x = case
    means, variances = plain_moments(x)
    mean, var = batch_moments(x)
    torch.testing.assert_close(mean.tolist(), means)
    torch.testing.assert_close(var.tolist(), variances)


def test_moments_do_not_depend_on_the_layout() -> None:
    x = 100 + torch.randn(6, 5, 7, 3, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(
        batch_moments(x.contiguous(memory_format=torch.channels_last)), batch_moments(x), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_an_average_moves_by_its_share(case: Case) -> None:
    _, x = case
    old_mean, old_var = torch.full((4,), 5.0).double(), torch.full((4,), 7.0).double()
    mean, var, batch_mean = moved_average(x, old_mean, old_var, 0.25)
    means, variances = (torch.tensor(values).double() for values in plain_moments(x))
    torch.testing.assert_close(batch_mean, means)
    torch.testing.assert_close(mean, 0.75 * 5 + 0.25 * means)
    torch.testing.assert_close(var, 0.75 * 7 + 0.25 * variances)
    assert (old_mean == 5).all()
    assert (old_var == 7).all()


def test_other_moments_may_be_given() -> None:
    x = torch.zeros(4, 1)
    mean, var, _ = moved_average(x, x[0], x[0], 0.5, lambda x: (torch.full((1,), 2.0), torch.full((1,), 4.0)))
    assert (mean.item(), var.item()) == (1.0, 2.0)


@needs_cuda
@LAYOUTS
def test_moments_on_the_device_are_those_of_the_host(layout: torch.memory_format) -> None:
    x = torch.randn(16, 8, 5, 6, generator=torch.Generator().manual_seed(0)) * 3 + 1
    x[:, 0] = 0.5  # a dead channel
    on_device = batch_moments(x.cuda().contiguous(memory_format=layout))
    for ours, theirs in zip(on_device, batch_moments(x.double()), strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-5, atol=1e-6)


@needs_cuda
@LAYOUTS
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_on_the_device_averages_move_as_on_the_host(
    layout: torch.memory_format, share: float, dtype: torch.dtype
) -> None:
    x = (torch.randn(16, 8, 5, 6, generator=torch.Generator().manual_seed(0)) * 3 + 1).to(dtype)
    x[:, 0] = 0.5  # a dead channel,
    x[:, 1] = 1e-6 * x[:, 1]  # and one that is nearly dead
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    mean, var = torch.linspace(-1, 1, 8, dtype=kept), torch.linspace(0, 1, 8, dtype=kept)
    theirs = moved_average(x.double(), mean.double(), var.double(), share)
    ours = moved_average(x.cuda().contiguous(memory_format=layout), mean.cuda(), var.cuda(), share)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-7)
    assert (ours[1] >= 0).all()
