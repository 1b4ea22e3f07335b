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
    bn_layers,
    replace_layers,
    updating_statistics,
)
from resitta.norm.instance_aware_bn import InstanceAwareBN
from resitta.norm.moments import batch_moments
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
