import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models import ResNet50

# A sample of the names in torchvision's checkpoint.
PUBLIC_NAMES = {
    "conv1.weight": (64, 3, 7, 7),
    "bn1.running_var": (64,),
    "layer1.0.conv1.weight": (64, 64, 1, 1),
    "layer1.0.conv2.weight": (64, 64, 3, 3),
    "layer1.0.conv3.weight": (256, 64, 1, 1),
    "layer1.0.bn3.bias": (256,),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1),
    "layer1.0.downsample.1.running_mean": (256,),
    "layer3.5.bn2.num_batches_tracked": (),
    "layer4.2.conv3.weight": (2048, 512, 1, 1),
    "fc.weight": (1000, 2048),
    "fc.bias": (1000,),
}


def reference(state: dict[str, Tensor], x: Tensor, *, eps: float, stride_in_1x1: bool) -> Tensor:
    """A ResNet of one bottleneck per stage in eval mode, written over the state_dict alone."""

    def unit(x: Tensor, conv: str, bn: str, stride: int = 1) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, var = state[f"{bn}.running_mean"], state[f"{bn}.running_var"]
        return F.batch_norm(x, mean, var, state[f"{bn}.weight"], state[f"{bn}.bias"], eps=eps)

    x = F.max_pool2d(unit(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage in (1, 2, 3, 4):
        name, stride = f"layer{stage}.0", 1 if stage == 1 else 2
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        h = unit(x, f"{name}.conv1", f"{name}.bn1", first).relu()
        h = unit(h, f"{name}.conv2", f"{name}.bn2", second).relu()
        h = unit(h, f"{name}.conv3", f"{name}.bn3")
        x = (h + unit(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(("stride_in_1x1", "eps"), [(False, 1e-5), (True, 1e-1)])
def test_it_computes_what_the_reference_computes(stride_in_1x1: bool, eps: float) -> None:
    model = ResNet50(layers=(1, 1, 1, 1), classes=7, stride_in_1x1=stride_in_1x1, bn_eps=eps).eval()
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.1, generator=generator)
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
    x = torch.rand(2, 3, 64, 64, generator=generator)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    expected = reference(model.state_dict(), normalised, eps=eps, stride_in_1x1=stride_in_1x1)
    torch.testing.assert_close(model(x), expected)


def test_names_and_shapes_are_those_of_the_public_checkpoint() -> None:
    with torch.device("meta"):
        model = ResNet50()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes.items() >= PUBLIC_NAMES.items()
    assert len(shapes) == 320
    assert sum(p.numel() for p in model.parameters()) == 25_557_032


@pytest.mark.parametrize("layers", [(3, 4, 6), (3, 4, 0, 3)])
def test_impossible_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(BadSetting, match="blocks of 4 stages"):
        ResNet50(layers=layers)
