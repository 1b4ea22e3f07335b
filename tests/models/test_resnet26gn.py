import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models import ResNet26GN

# A sample of the names in the testbed's checkpoint.
NAMES = {
    "conv.weight": (32, 3, 3, 3),
    "blocks.0.gn1.weight": (32,),
    "blocks.4.conv1.weight": (64, 32, 3, 3),
    "blocks.4.down.weight": (64, 32, 1, 1),
    "blocks.8.down.weight": (128, 64, 1, 1),
    "blocks.11.gn2.bias": (128,),
    "blocks.11.conv2.weight": (128, 128, 3, 3),
    "gn.bias": (128,),
    "fc.weight": (10, 128),
    "fc.bias": (10,),
}


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Eight groups of channels, each with its own mean and biased variance per image."""
    grouped = x.reshape(len(x), 8, -1)
    mean, var = grouped.mean(2, keepdim=True), grouped.var(2, correction=0, keepdim=True)
    normal = ((grouped - mean) / (var + 1e-5).sqrt()).reshape(x.shape)
    return normal * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)


def reference(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network written over the state_dict alone, with the strides of four blocks per group."""

    def norm(x: Tensor, name: str) -> Tensor:
        return group_norm(x, state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.conv2d(2 * x - 1, state["conv.weight"], padding=1)
    for index in range(12):
        name, stride = f"blocks.{index}", 2 if index in (4, 8) else 1
        h = norm(x, f"{name}.gn1").relu()
        down = state.get(f"{name}.down.weight")
        shortcut = x if down is None else F.conv2d(h, down, stride=stride)
        h = F.conv2d(h, state[f"{name}.conv1.weight"], stride=stride, padding=1)
        x = shortcut + F.conv2d(norm(h, f"{name}.gn2").relu(), state[f"{name}.conv2.weight"], padding=1)
    return F.linear(norm(x, "gn").relu().mean((2, 3)), state["fc.weight"], state["fc.bias"])


def test_it_computes_what_the_reference_computes() -> None:
    model = ResNet26GN(channels=(8, 16, 24), classes=7).double().eval()
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(layer.bias, -0.5, 0.5, generator=generator)
    x = torch.rand(2, 3, 32, 32, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(model(x), reference(model.state_dict(), x))


def test_names_and_shapes_are_those_of_the_checkpoint() -> None:
    with torch.device("meta"):
        model = ResNet26GN()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes.items() >= NAMES.items()
    assert [name for name in shapes if "down" in name] == ["blocks.4.down.weight", "blocks.8.down.weight"]
    assert sum(p.numel() for p in model.parameters()) == 1_472_170
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


@pytest.mark.parametrize("options", [{"blocks": 0}, {"channels": (8, 12)}, {"channels": ()}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(BadSetting, match=r"multiples of 8; found blocks=\d"):
        ResNet26GN(**options)  # type: ignore[arg-type]
