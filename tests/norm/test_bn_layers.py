import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.norm.bn_layers import (
    AdaptiveBN,
    BatchNorm,
    BatchStatisticsBN,
    batch_moments,
    bn_layers,
    moved_average,
    replace_layers,
    updating_statistics,
)
from resitta.norm.instance_aware_bn import InstanceAwareBN
from resitta.norm.resibn import ResiBN
from resitta.norm.robust_bn import RobustBN

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]

WRAPPERS: dict[str, Callable[[BatchNorm], AdaptiveBN]] = {
    "batch": BatchStatisticsBN,
    "resibn": partial(ResiBN, nu_b=0.3),
    "rbn": partial(RobustBN, alpha=0.3),
    "iabn": partial(InstanceAwareBN, k=1.0, momentum=0.3),
}


class BatchNormAct2d(nn.BatchNorm2d):
    """A BatchNorm with an activation inside, as model libraries have them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.LeakyReLU(0.5)

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.act(super().forward(x))
        return activated


class Twice(nn.Module):
    """One BatchNorm layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.second = nn.Sequential(nn.Linear(3, 3), self.first[1])


def test_every_kind_of_batch_norm_is_found_and_nothing_else() -> None:
    others = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm(4), nn.Linear(4, 4)
    kinds = nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4), BatchNormAct2d(4)
    model = nn.Sequential(*others, nn.Sequential(*kinds))
    assert [(name, id(layer)) for name, layer in bn_layers(model)] == [(f"4.{i}", id(k)) for i, k in enumerate(kinds)]


def test_a_layer_in_two_places_is_found_and_wrapped_once() -> None:
    model = Twice()
    assert len(bn_layers(model)) == 1
    replace_layers(model, nn.BatchNorm1d, BatchStatisticsBN)  # type: ignore[arg-type]
    assert isinstance(model.first[1], BatchStatisticsBN)
    assert model.first[1] is model.second[1]
    assert isinstance(model.first[1].layer, nn.BatchNorm1d)


def test_a_model_that_is_a_layer_itself_is_replaced() -> None:
    layer = nn.BatchNorm1d(2)
    wrapped = replace_layers(layer, nn.BatchNorm1d, BatchStatisticsBN)  # type: ignore[arg-type]
    assert isinstance(wrapped, BatchStatisticsBN)
    assert wrapped.layer is layer


def test_batch_statistics_normalise_by_the_formula(case: Case, by_formula: Formula) -> None:
    layer, x = case
    mean, var = batch_moments(x)
    expected = by_formula(layer, x, mean, var)
    torch.testing.assert_close(BatchStatisticsBN(layer)(x), expected)


def test_gradients_flow_through_batch_statistics(case: Case) -> None:
    layer, x = case
    x.requires_grad_()
    training = F.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
    expected = torch.autograd.grad((training**3).sum(), [x, layer.weight])
    found = torch.autograd.grad((BatchStatisticsBN(layer)(x) ** 3).sum(), [x, layer.weight])
    torch.testing.assert_close(found, expected)


def test_one_value_per_channel_takes_the_source_statistics(by_formula: Formula) -> None:
    layer = nn.BatchNorm2d(2).eval()
    layer.running_mean, layer.running_var = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 9.0])
    one, many = torch.tensor([5.0, 5.0]).view(1, 2, 1, 1), torch.rand(4, 2, 3, 3)
    expected_one = by_formula(layer, one, layer.running_mean, layer.running_var)
    expected_many = by_formula(layer, many, *batch_moments(many))
    wrapped = BatchStatisticsBN(layer)
    torch.testing.assert_close(wrapped(one), expected_one)
    torch.testing.assert_close(wrapped(many), expected_many)


def test_batch_statistics_need_no_running_ones() -> None:
    wrapped = BatchStatisticsBN(nn.BatchNorm1d(1, track_running_stats=False).eval())
    torch.testing.assert_close(wrapped(torch.tensor([[1.0], [3.0]])), torch.tensor([[-1.0], [1.0]]))
    assert wrapped.statistics() is None


@pytest.mark.parametrize("updating", [False, True])
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_an_activation_inside_a_layer_stays(wrap: Callable[[BatchNorm], AdaptiveBN], updating: bool) -> None:
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    outputs = []
    for layer in (nn.BatchNorm2d(3).eval(), BatchNormAct2d(3).eval()):
        wrapped = wrap(layer)
        wrapped.updating = updating
        outputs.append(wrapped(x))
    plain, activated = outputs
    torch.testing.assert_close(activated, torch.where(plain > 0, plain, plain / 2))


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_no_wrapper_moves_its_statistics_unless_updating(wrap: Callable[[BatchNorm], AdaptiveBN], case: Case) -> None:
    layer, x = case
    wrapped = wrap(layer)
    before = copy.deepcopy(wrapped.state_dict())
    with torch.no_grad():
        first, second = wrapped(x), wrapped(x)
    torch.testing.assert_close(dict(wrapped.state_dict()), dict(before), rtol=0, atol=0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("wrap", [WRAPPERS["resibn"], WRAPPERS["rbn"], WRAPPERS["iabn"]])
def test_statistics_start_as_the_source_and_go_back_into_the_layer(
    wrap: Callable[[BatchNorm], AdaptiveBN], case: Case
) -> None:
    layer, x = case
    assert layer.running_mean is not None
    assert layer.running_var is not None
    source = layer.running_mean.clone(), layer.running_var.clone()
    wrapped = wrap(layer)
    torch.testing.assert_close(wrapped.statistics(), source, rtol=0, atol=0)
    wrapped.updating = True
    wrapped(x)
    moved = copy.deepcopy(wrapped.statistics())
    assert moved is not None
    assert not torch.equal(moved[0], source[0])
    assert not torch.equal(moved[1], source[1])
    assert wrapped.unwrap() is layer
    torch.testing.assert_close((layer.running_mean, layer.running_var), moved, rtol=0, atol=0)


def test_updating_ends_with_the_block_even_after_an_error() -> None:
    model = replace_layers(Twice(), nn.BatchNorm1d, partial(ResiBN, nu_b=0.1))
    wrapped = next(module for module in model.modules() if isinstance(module, AdaptiveBN))
    with updating_statistics(model):
        assert wrapped.updating
    assert not wrapped.updating
    with pytest.raises(KeyError), updating_statistics(model):
        raise KeyError
    assert not wrapped.updating


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
