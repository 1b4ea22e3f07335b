"""A lean pass gives the very gradients of an ordinary one, and keeps less."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from resitta.accel.frozen_bn import FrozenBN, frozen_bn
from resitta.accel.low_memory_backward import LowMemoryBackward


def block(inplace: bool = False) -> nn.Module:
    """Convolutions of several kinds with frozen weights between trained normalisation layers."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(8, 8, 3, stride=2, groups=4),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(8, 4, 1, dilation=2),
    ).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    return network


def gradients(network: nn.Module, x: Tensor, *, lean: bool) -> list[Tensor]:
    """Of all that is trained."""
    with LowMemoryBackward() if lean else nullcontext():
        y = network(x)
    trained = [p for p in network.parameters() if p.requires_grad]
    return list(torch.autograd.grad(y.square().sum(), trained))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_the_same(inplace: bool, layout: torch.memory_format) -> None:
    x = torch.randn(5, 3, 16, 16).contiguous(memory_format=layout)
    ours, theirs = gradients(block(inplace), x, lean=True), gradients(block(inplace), x, lean=False)
    assert all(map(torch.equal, ours, theirs))


def test_gradients_are_the_same_in_bf16() -> None:
    x = torch.randn(5, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        ours, theirs = gradients(block(), x, lean=True), gradients(block(), x, lean=False)
    assert all(map(torch.equal, ours, theirs))


def test_a_trained_convolution_keeps_its_input() -> None:
    convolution, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    ours, theirs = gradients(convolution, x, lean=True), gradients(convolution, x, lean=False)
    assert torch.equal(ours[0], theirs[0])
    assert ours[0].abs().sum() > 0


@pytest.mark.parametrize("relu", [F.relu, torch.relu, Tensor.relu, nn.ReLU()])
def test_the_result_of_every_relu_may_go(relu: Callable[[Tensor], Tensor]) -> None:
    assert _stays(relu, "result", lean=False)
    assert not _stays(relu, "result", lean=True)


@pytest.mark.parametrize("relu", [F.relu_, Tensor.relu_, nn.ReLU(inplace=True)])
@pytest.mark.parametrize("columns", [6, 3], ids=["whole", "part"])
def test_in_place_it_writes_into_what_it_was_given(relu: Callable[[Tensor], Tensor], columns: int) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    gradients: list[Tensor] = []
    for mode in (LowMemoryBackward(), nullcontext()):
        y = x * 1
        with mode:
            relu(y if columns == 6 else y[:, :columns])
        assert (y[:, :columns] >= 0).all()
        gradients += torch.autograd.grad(y.square().sum(), x)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("relu", [F.relu, nn.ReLU(inplace=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_behind_a_normalisation_it_keeps_nothing(
    relu: Callable[[Tensor], Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def backward(ctx: object, grad: Tensor) -> tuple[None, ...]:  # the real one needs CUDA's kernels
        seen.append(grad)
        return (None,) * 8

    monkeypatch.setattr(FrozenBN, "backward", staticmethod(backward))
    layer, x = nn.BatchNorm2d(3), torch.randn(4, 3, 8, 8).to(dtype)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    mean, var = torch.randn(3), torch.rand(3) + 0.1
    for mode in (LowMemoryBackward(), nullcontext()):
        with mode:
            z = relu(frozen_bn(layer, x, mean, var))
        assert isinstance(mode, nullcontext) or not z.grad_fn.saved_tensors  # type: ignore[union-attr]
        z.square().sum().backward()  # type: ignore[no-untyped-call]
    ours, theirs = seen
    assert torch.equal(ours, theirs)
    assert (ours == 0).any()
    assert (ours != 0).any()


def test_the_input_of_a_frozen_convolution_may_go() -> None:
    def convolution(x: Tensor) -> Tensor:
        return F.conv2d(x, weight=torch.ones(8, 3, 3, 3))

    assert _stays(convolution, "input", lean=False)
    assert not _stays(convolution, "input", lean=True)


def _stays(operation: Callable[[Tensor], Tensor], which: str, *, lean: bool) -> bool:
    """Whether the graph of gradients keeps the input or result of an operation alive when nobody else does."""
    x = torch.randn(2, 3, 16, 16, requires_grad=True) + 0
    with LowMemoryBackward() if lean else nullcontext():
        y = operation(x)
    graph = y.sum()
    memory = StorageWeakRef((x if which == "input" else y).untyped_storage())  # type: ignore[no-untyped-call]
    del x, y
    assert graph.requires_grad
    return not memory.expired()  # type: ignore[no-untyped-call]
