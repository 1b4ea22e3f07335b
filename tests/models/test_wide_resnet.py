import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models import WideResNet

# A sample of the names in RobustBench's "Standard" checkpoint.
PUBLIC_NAMES = {
    "conv1.weight": (16, 3, 3, 3),
    "block1.layer.0.bn1.running_mean": (16,),
    "block1.layer.0.conv1.weight": (160, 16, 3, 3),
    "block1.layer.0.bn2.weight": (160,),
    "block1.layer.0.conv2.weight": (160, 160, 3, 3),
    "block1.layer.0.convShortcut.weight": (160, 16, 1, 1),
    "block2.layer.0.convShortcut.weight": (320, 160, 1, 1),
    "block3.layer.3.bn2.num_batches_tracked": (),
    "bn1.running_var": (640,),
    "fc.weight": (10, 640),
    "fc.bias": (10,),
}


def reference(state: dict[str, Tensor], x: Tensor, blocks: int) -> Tensor:
    """WRN in eval mode, written over the state_dict alone."""

    def activate(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{k}"].view(-1, 1, 1) for k in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * weight + bias).clamp(min=0)

    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for group in (1, 2, 3):
        for block in range(blocks):
            name = f"block{group}.layer.{block}"
            stride = 2 if group > 1 and block == 0 else 1
            h = activate(x, f"{name}.bn1")
            if f"{name}.convShortcut.weight" in state:
                x = F.conv2d(h, state[f"{name}.convShortcut.weight"], stride=stride)
            h = F.conv2d(h, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            x = x + F.conv2d(activate(h, f"{name}.bn2"), state[f"{name}.conv2.weight"], padding=1)
    features = F.avg_pool2d(activate(x, "bn1"), 8).flatten(1)
    return F.linear(features, state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("width", [1, 2])
def test_it_computes_what_the_reference_computes(width: int) -> None:
    model = WideResNet(depth=16, width=width, classes=7).eval()
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.1, generator=generator)
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
    x = torch.rand(2, 3, 32, 32, generator=generator)
    torch.testing.assert_close(model(x), reference(model.state_dict(), x, blocks=2), rtol=1e-4, atol=1e-5)


def test_names_and_shapes_are_those_of_the_public_checkpoint() -> None:
    with torch.device("meta"):
        model = WideResNet()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes.items() >= PUBLIC_NAMES.items()
    assert sum(p.numel() for p in model.parameters()) == 36_479_194


def test_a_block_that_keeps_its_channels_has_no_shortcut_convolution() -> None:
    names = WideResNet(depth=16, width=1).state_dict()
    assert [name for name in names if "Shortcut" in name] == [
        "block2.layer.0.convShortcut.weight",
        "block3.layer.0.convShortcut.weight",
    ]


def test_normalisation_is_applied_inside() -> None:
    plain = WideResNet(depth=10, width=1).eval()
    centred = WideResNet(depth=10, width=1, mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    centred.load_state_dict(plain.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(centred(x), plain(2 * x - 1))


@pytest.mark.parametrize("depth", [4, 27, -2])
def test_an_impossible_depth_is_refused(depth: int) -> None:
    with pytest.raises(BadSetting, match=f"found {depth}"):
        WideResNet(depth=depth)
