import pytest
import torch
from torch import Tensor, nn

from resitta.errors import UnknownName, UnsuitableModel
from resitta.training.features import find_head, head_of, penultimate, with_features
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


POOLED = nn.AdaptiveAvgPool2d(1), nn.Flatten()
WITH_HEAD = {
    "linear": (nn.Sequential(nn.Conv2d(3, 7, 3), *POOLED, nn.Linear(7, 2)), "3"),
    "linear without bias": (nn.Sequential(nn.Conv2d(3, 7, 3), *POOLED, nn.Linear(7, 2, bias=False)), "3"),
    "convolution, then average": (nn.Sequential(nn.Conv2d(3, 7, 3), nn.Conv2d(7, 2, 1), *POOLED), "1"),
    "average, then convolution": (nn.Sequential(nn.Conv2d(3, 7, 3), POOLED[0], nn.Conv2d(7, 2, 1), POOLED[1]), "2"),
    "registered first": (Reordered(), "head"),
    "one size only": (nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2)), "1"),
}


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_a_linear_head_is_found_and_gives_the_logits(kind: str) -> None:
    model, name = WITH_HEAD[kind]
    network = Network(model.double())
    images = torch.rand(5, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert find_head(network) == find_head(network.fork()) == name
    logits, features = with_features(network, images, name)
    torch.testing.assert_close(logits, network(images), rtol=0, atol=0)
    torch.testing.assert_close(head_of(network, name)(features), logits)
    torch.testing.assert_close(head_of(network, name)(2 * features), 2 * logits - head_of(network, name).bias)


WITHOUT_HEAD = {
    "no linear layer": (nn.Sequential(nn.Conv2d(3, 2, 3), *POOLED), "no Linear or 1×1 convolution ran as a head"),
    "groups": (nn.Sequential(nn.Conv2d(3, 3, 1, groups=3), *POOLED), "'0' ran last, but the logits"),
    "an activation": (nn.Sequential(*POOLED, nn.Linear(3, 2), nn.Softplus()), "'2' ran last, but the logits"),
}


@pytest.mark.parametrize("kind", WITHOUT_HEAD)
def test_a_network_without_a_linear_head_is_refused_in_a_sentence(kind: str) -> None:
    model, reason = WITHOUT_HEAD[kind]
    with pytest.raises(UnsuitableModel, match=f"{reason}.*name it with head="):
        find_head(Network(model))


class Two(Reordered):
    """Another linear layer runs after the head."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        self.squeeze(x.mean((2, 3)))
        return logits


def test_a_head_that_ran_before_another_can_be_named() -> None:
    network = Network(Two())
    with pytest.raises(UnsuitableModel, match="'squeeze' ran last"):
        find_head(network)
    assert find_head(network, "head") == "head"
    with pytest.raises(UnknownName, match="'heat'.*'head'"):
        find_head(network, "heat")


def test_a_model_of_unusual_images_needs_the_name_of_its_head() -> None:
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(3 * 50 * 50, 2)))
    with pytest.raises(UnsuitableModel, match="none of the usual sizes; name the head with head="):
        find_head(network)
    assert find_head(network, "1") == "1"
