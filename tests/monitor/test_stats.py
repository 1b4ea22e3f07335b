import pytest
import torch
from torch import nn

from resitta import Guard, adapt
from resitta.errors import Collapsed
from resitta.monitor.stats import Stats, wasserstein_drift
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.norm.resibn import ResiBN
from resitta.training.network import Network


def test_drift_is_zero_at_the_source_and_grows(model: nn.Module) -> None:
    source = Network(model)
    moved = source.fork().with_bn(lambda layer: ResiBN(layer, nu_b=0.5))
    assert wasserstein_drift(moved.model, source.model) == {"1": 0.0, "4": 0.0}
    layer = moved.model.get_submodule("1.layer")
    assert isinstance(layer, nn.BatchNorm2d)
    assert layer.running_mean is not None
    layer.running_mean = layer.running_mean + 3
    assert wasserstein_drift(moved.model, source.model) == pytest.approx({"1": 3 * 8**0.5, "4": 0.0}, abs=1e-5)


def test_methods_without_statistics_have_no_drift(model: nn.Module) -> None:
    source = Network(model)
    assert wasserstein_drift(source.fork().with_bn(BatchStatisticsBN).model, source.model) == {}
    stats = Stats(samples=0, updates=0, mean_entropy=0.0, bank=None, drift={})
    assert stats.mean_drift == 0


def test_the_relative_drift_is_what_the_guard_bounds(model: nn.Module) -> None:
    images = torch.rand(64, 3, 8, 8) * 0.1
    free = adapt(model, "resitta", guard=Guard(action="warn", max_drift=1e9, screen=False))
    assert free.stats.relative_drift == 0
    free(images)
    found = free.stats.relative_drift
    assert found > 0
    adapt(model, "resitta", guard=Guard(action="raise", max_drift=found * 1.001, screen=False))(images)
    with pytest.raises(Collapsed, match="drift"):
        adapt(model, "resitta", guard=Guard(action="raise", max_drift=found * 0.999, screen=False))(images)
