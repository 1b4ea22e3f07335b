import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.models import ResNeXt29

# A sample of the names in the AugMix code's checkpoint, without the leading "module.".
PUBLIC_NAMES = {
    "conv_1_3x3.weight": (64, 3, 3, 3),
    "bn_1.running_mean": (64,),
    "stage_1.0.conv_reduce.weight": (128, 64, 1, 1),
    "stage_1.0.bn_reduce.weight": (128,),
    "stage_1.0.conv_conv.weight": (128, 32, 3, 3),
    "stage_1.0.bn.running_var": (128,),
    "stage_1.0.conv_expand.weight": (256, 128, 1, 1),
    "stage_1.0.bn_expand.bias": (256,),
    "stage_1.0.downsample.0.weight": (256, 64, 1, 1),
    "stage_1.0.downsample.1.num_batches_tracked": (),
    "stage_3.2.conv_conv.weight": (512, 128, 3, 3),
    "classifier.weight": (100, 1024),
    "classifier.bias": (100,),
}


def reference(state: dict[str, Tensor], x: Tensor, cardinality: int) -> Tensor:
    """ResNeXt-29 in eval mode, written over the state_dict alone."""

    def normalise(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, var, weight, bias)

    def block(x: Tensor, name: str, stride: int) -> Tensor:
        h = normalise(F.conv2d(x, state[f"{name}.conv_reduce.weight"]), f"{name}.bn_reduce").relu()
        h = F.conv2d(h, state[f"{name}.conv_conv.weight"], stride=stride, padding=1, groups=cardinality)
        h = F.conv2d(normalise(h, f"{name}.bn").relu(), state[f"{name}.conv_expand.weight"])
        if f"{name}.downsample.0.weight" in state:
            x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
            x = normalise(x, f"{name}.downsample.1")
        return (x + normalise(h, f"{name}.bn_expand")).relu()

    x = F.conv2d((x - 0.5) / 0.5, state["conv_1_3x3.weight"], padding=1)
    x = normalise(x, "bn_1").relu()
    for stage in (1, 2, 3):
        for index in range(3):
            x = block(x, f"stage_{stage}.{index}", stride=2 if stage > 1 and index == 0 else 1)
    features = F.avg_pool2d(x, 8).flatten(1)
    return F.linear(features, state["classifier.weight"], state["classifier.bias"])


def test_it_computes_what_the_reference_computes() -> None:
    model = ResNeXt29(cardinality=2, base_width=4, classes=7).eval()
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.1, generator=generator)
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
    x = torch.rand(2, 3, 32, 32, generator=generator)
    torch.testing.assert_close(model(x), reference(model.state_dict(), x, cardinality=2))


def test_names_and_shapes_are_those_of_the_public_checkpoint() -> None:
    with torch.device("meta"):
        model = ResNeXt29()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes.items() >= PUBLIC_NAMES.items()
    assert "stage_1.1.downsample.0.weight" not in shapes
    assert sum(p.numel() for p in model.parameters()) == 6_900_132
