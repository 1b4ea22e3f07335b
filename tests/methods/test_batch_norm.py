from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta import adapt
from resitta.errors import NotExportable


def by_formula(model: nn.Module, images: Tensor) -> Tensor:
    """The layers one after the other, BatchNorm written out with the moments of the batch."""
    x = images
    for layer in model.children():
        if isinstance(layer, nn.BatchNorm2d):
            mean = x.mean((0, 2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
            x = (x - mean) / (var + layer.eps).sqrt()
            x = x * layer.weight.view(1, -1, 1, 1) + layer.bias.view(1, -1, 1, 1)
        else:
            x = layer(x)
    return x


def test_logits_by_the_formula(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter = adapt(precise, "bn")
    for batch in torch.split(stream(40), 16):
        torch.testing.assert_close(adapter(batch), by_formula(precise, batch))
    assert adapter.stats.updates == 0
    assert not list(adapter.parameters())


def test_batches_leave_no_trace(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter, images = adapt(precise, "bn"), stream(20)
    first = adapter(images[:8])
    adapter(images[8:])
    torch.testing.assert_close(adapter(images[:8]), first, rtol=0, atol=0)


def test_layers_need_no_running_statistics(stream: Callable[[int], Tensor]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).double()
    torch.testing.assert_close(adapt(model, "bn")(stream(6)), by_formula(model, stream(6)))


def test_a_single_image_has_statistics_over_its_positions(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    torch.testing.assert_close(adapt(precise, "bn")(stream(1)), by_formula(precise, stream(1)))


def test_a_single_vector_falls_back_to_the_source(stream: Callable[[int], Tensor]) -> None:
    layer = nn.BatchNorm1d(4)
    layer.running_mean, layer.running_var = F.normalize(torch.rand(4), dim=0), torch.full((4,), 2.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 4), layer).double().eval()
    torch.testing.assert_close(adapt(model, "bn")(stream(1)), model(stream(1)))


def test_no_checkpoint_can_express_it(precise: nn.Module) -> None:
    with pytest.raises(NotExportable, match="bn"):
        adapt(precise, "bn").export()
