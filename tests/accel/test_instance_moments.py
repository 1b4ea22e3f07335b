import pytest
import torch
from torch import Tensor

from resitta.accel.instance_moments import instance_moments


def plain(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.flatten(2)
    return values.mean(2), values.var(2, correction=0)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
def test_moments_of_each_sample(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(instance_moments(x), plain(x))


def test_its_gradient_is_autograd_s() -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(instance_moments, [x])
    weights = [torch.randn(2, 3, dtype=torch.float64) for _ in range(2)]

    def gradient(moments: tuple[Tensor, Tensor]) -> Tensor:
        values = torch.stack([(w * m.exp()).sum() for w, m in zip(weights, moments, strict=True)])
        return torch.autograd.grad(values.sum(), x)[0]

    torch.testing.assert_close(gradient(instance_moments(x)), gradient(plain(x)))


def test_only_one_of_them_may_have_a_gradient() -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    for part in range(2):
        ours = torch.autograd.grad(instance_moments(x)[part].sum(), x)[0]
        torch.testing.assert_close(ours, torch.autograd.grad(plain(x)[part].sum(), x)[0])


def test_the_layout_is_kept() -> None:
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.autograd.grad(instance_moments(x)[1].sum(), x)[0]
    assert gradient.is_contiguous(memory_format=torch.channels_last)
