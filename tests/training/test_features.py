import pytest
import torch
from torch import Tensor, nn

from resitta.errors import UnknownName, UnsuitableModel
from resitta.training.features import penultimate
from resitta.training.network import Network

IMAGES = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Reordered(nn.Module):
    """The head is registered first and runs last; another linear layer runs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.squeeze = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        logits: Tensor = self.head(hidden)
        return logits

    def hidden(self, x: Tensor) -> Tensor:
        squeezed: Tensor = self.squeeze(x.mean((2, 3)))
        return squeezed.relu()


def test_the_head_is_the_last_linear_layer_to_run() -> None:
    model = Reordered().eval()
    logits, features = penultimate(Network(model), IMAGES)
    torch.testing.assert_close(logits, model(IMAGES))
    torch.testing.assert_close(features, model.hidden(IMAGES))


def test_a_pointwise_convolution_can_be_the_head() -> None:
    body, head = nn.Conv2d(3, 7, 3), nn.Conv2d(7, 2, 1)
    model = nn.Sequential(body, head, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    _, features = penultimate(Network(model), IMAGES)
    torch.testing.assert_close(features, body(IMAGES).mean((2, 3)))


def test_a_named_module_gives_its_output() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    logits, features = penultimate(Network(model), IMAGES, "1")
    torch.testing.assert_close(features, model[:2](IMAGES).mean((2, 3)))
    torch.testing.assert_close(logits, model(IMAGES))


def test_a_callable_gives_the_features() -> None:
    logits, features = penultimate(Network(Reordered()), IMAGES, lambda images: images[:, :, 0])
    torch.testing.assert_close(features, IMAGES[:, :, 0].mean(2))
    assert logits.shape == (5, 2)


def test_no_hook_stays_behind() -> None:
    network = Network(Reordered())
    penultimate(network, IMAGES)
    with pytest.raises(ValueError, match="refused"):
        penultimate(network, torch.rand(5, 7, 6, 6))
    assert not any(module._forward_hooks for module in network.modules())


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(UnknownName, match="'squeez'.*'squeeze'"):
        penultimate(Network(Reordered()), IMAGES, "squeez")


def test_a_model_without_a_head_asks_for_a_name() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(UnsuitableModel, match="features="):
        penultimate(Network(model), IMAGES)
