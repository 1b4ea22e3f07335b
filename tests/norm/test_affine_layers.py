import pytest
import torch
from torch import nn

from resitta.norm.affine_layers import affine_layers, affine_tensors, mean_scale
from resitta.training.network import Network


class OwnRMSNorm(nn.Module):
    """As other libraries write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Normaliser(nn.Module):
    """Not a layer: a module with children."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.inner = nn.LayerNorm(4)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm(4),
        nn.LayerNorm((4, 2)),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
        OwnRMSNorm(),
    ],
)
def test_layers_of_every_kind_are_found(layer: nn.Module) -> None:
    assert affine_layers(nn.Sequential(nn.Linear(4, 4), layer)) == [("1", layer)]


@pytest.mark.parametrize(
    "layer", [nn.InstanceNorm2d(4), nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 4), nn.Conv2d(1, 1, 1)]
)
def test_layers_without_a_weight_and_other_layers_are_not(layer: nn.Module) -> None:
    assert affine_layers(layer) == []


def test_a_module_with_children_is_not_a_layer() -> None:
    model = Normaliser()
    assert affine_layers(model) == [("inner", model.inner)]


def test_a_fork_owns_weight_and_bias_of_each_layer_once() -> None:
    shared = nn.LayerNorm(4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared, nn.GroupNorm(2, 4))
    assert Network(model).trained_names("affine") == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert len(affine_tensors(model)) == 4


def test_the_mean_scale_is_that_of_all_channels_together() -> None:
    narrow, wide = nn.BatchNorm1d(1), nn.LayerNorm(3)
    with torch.no_grad():
        narrow.weight.fill_(-2.0)
        wide.weight.copy_(torch.tensor([0.0, 1.0, 3.0]))
    assert mean_scale(nn.Sequential(narrow, nn.Linear(1, 3), wide, nn.BatchNorm1d(3, affine=False))) == 6 / 4
    assert mean_scale(nn.Linear(1, 3)) == 0.0
