from typing import Any

import pytest
import torch
from torch import nn

from resitta.models import ResNet50, create
from resitta.norm.affine_layers import affine_layers
from resitta.norm.early_layers import early_affine_names
from resitta.training.network import Network


def tree(names: str) -> nn.Module:
    """A module with norm layers of these names; `{0-3}` stands for the numbers."""
    model = nn.Module()
    for name in names.split():
        for place in expanded(name):
            module = model
            *parents, leaf = place.split(".")
            for part in parents:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.add_module(leaf, nn.LayerNorm(2))
    return model


def expanded(name: str) -> list[str]:
    if "{" not in name:
        return [name]
    before, _, rest = name.partition("{")
    (first, last), after = map(int, rest.partition("}")[0].split("-")), rest.partition("}")[2]
    return [found for number in range(first, last + 1) for found in expanded(f"{before}{number}{after}")]


def late(model: nn.Module) -> list[str]:
    """The norm layers that the rule leaves out, after a check that it never splits one."""
    named = early_affine_names(model)
    early = list(dict.fromkeys(name.rpartition(".")[0] for name in named))
    assert named == [f"{layer}.{kind}".lstrip(".") for layer in early for kind in ("weight", "bias")]
    return [name for name, _ in affine_layers(model) if name not in early]


TIMM = {
    "resnet50": (
        "bn1 layer1.0.bn{1-3} layer1.0.downsample.1 layer1.{1-2}.bn{1-3} layer2.0.bn{1-3} layer2.0.downsample.1 "
        "layer2.{1-3}.bn{1-3} layer3.0.bn{1-3} layer3.0.downsample.1 layer3.{1-5}.bn{1-3} "
        "layer4.0.bn{1-3} layer4.0.downsample.1 layer4.{1-2}.bn{1-3}",
        "layer4.0.bn{1-3} layer4.0.downsample.1 layer4.{1-2}.bn{1-3}",
    ),
    "vit_base_patch16_224": ("blocks.{0-11}.norm{1-2} norm", "blocks.{9-11}.norm{1-2} norm"),
    "vit_base_patch16_clip_224": ("norm_pre blocks.{0-11}.norm{1-2} norm", "blocks.{9-11}.norm{1-2} norm"),
    "beit_large_patch16_224": ("blocks.{0-23}.norm{1-2} fc_norm", "blocks.{18-23}.norm{1-2} fc_norm"),
    "convnext_tiny": (
        "stem.1 stages.0.blocks.{0-2}.norm stages.1.downsample.0 stages.1.blocks.{0-2}.norm stages.2.downsample.0 "
        "stages.2.blocks.{0-8}.norm stages.3.downsample.0 stages.3.blocks.{0-2}.norm head.norm",
        "stages.3.downsample.0 stages.3.blocks.{0-2}.norm head.norm",
    ),
    "swin_tiny_patch4_window7_224": (
        "patch_embed.norm layers.0.blocks.{0-1}.norm{1-2} layers.1.downsample.norm layers.1.blocks.{0-1}.norm{1-2} "
        "layers.2.downsample.norm layers.2.blocks.{0-5}.norm{1-2} layers.3.downsample.norm "
        "layers.3.blocks.{0-1}.norm{1-2} norm",
        "layers.3.downsample.norm layers.3.blocks.{0-1}.norm{1-2} norm",
    ),
    "densenet121": (
        "features.norm0 features.denseblock1.denselayer{1-6}.norm{1-2} features.transition1.norm "
        "features.denseblock2.denselayer{1-12}.norm{1-2} features.transition2.norm "
        "features.denseblock3.denselayer{1-24}.norm{1-2} features.transition3.norm "
        "features.denseblock4.denselayer{1-16}.norm{1-2} features.norm5",
        "features.denseblock4.denselayer{1-16}.norm{1-2} features.norm5",
    ),
    "efficientnet_b0": (
        "bn1 blocks.0.0.bn{1-2} blocks.1.{0-1}.bn{1-3} blocks.2.{0-1}.bn{1-3} blocks.3.{0-2}.bn{1-3} "
        "blocks.4.{0-2}.bn{1-3} blocks.5.{0-3}.bn{1-3} blocks.6.0.bn{1-3} bn2",
        "blocks.5.{0-3}.bn{1-3} blocks.6.0.bn{1-3} bn2",
    ),
    "cait_xxs24_224": (
        "blocks.{0-23}.norm{1-2} blocks_token_only.{0-1}.norm{1-2} norm",
        "blocks.{18-23}.norm{1-2} blocks_token_only.{0-1}.norm{1-2} norm",
    ),
}
"""The names of timm's norm layers, and those of the layers that are left out."""


@pytest.mark.parametrize("name", TIMM)
def test_of_timms_networks_the_last_quarter_is_left_out(name: str) -> None:
    every, left_out = TIMM[name]
    assert late(tree(every)) == [place for names in left_out.split() for place in expanded(names)]


@pytest.mark.parametrize("name", TIMM)
def test_the_names_above_are_timms(name: str) -> None:
    timm: Any = pytest.importorskip("timm", exc_type=ImportError)
    with torch.device("meta"):
        model = timm.create_model(name)
    every, left_out = TIMM[name]
    assert {place for place, _ in affine_layers(model)} == {place for n in every.split() for place in expanded(n)}
    assert set(late(model)) == {place for names in left_out.split() for place in expanded(names)}


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("wrn16x1", "block3.layer.0.bn1", "bn1"),
        ("wrn28x10", "block3.layer.0.bn1", "bn1"),
        ("resnext29", "stage_3.0.bn_reduce", "stage_3.2.bn_expand"),
        ("resnet50", "layer4.0.bn1", "layer4.2.bn3"),
        ("resnet26gn", "blocks.9.gn1", "gn"),
        ("vit_cifar", "blocks.7.norm1", "norm"),
    ],
)
def test_of_our_networks_the_last_quarter_is_left_out(name: str, first: str, last: str) -> None:
    with torch.device("meta"):
        model = create(name)
    names = [place for place, _ in affine_layers(model)]
    assert late(model) == names[names.index(first) :]
    assert names[-1] == last


def test_a_network_inside_of_others_is_found() -> None:
    inner = ResNet50(layers=(1, 1, 1, 1))
    plain = early_affine_names(inner)
    assert plain[:2] == ["bn1.weight", "bn1.bias"]
    assert early_affine_names(nn.Sequential(nn.BatchNorm2d(3), inner)) == [
        *("0.weight", "0.bias"),
        *(f"1.{name}" for name in plain),
    ]


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU())))


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (2, 1), (3, 1), (4, 1), (6, 2), (8, 2), (13, 3)])
def test_in_a_plain_sequential_every_layer_counts_as_a_block(count: int, left_out: int) -> None:
    assert late(layers(count)) == [f"{3 * index + 1}" for index in range(count)][count - left_out :]


def test_two_stages_are_too_few_to_be_blocks() -> None:
    assert late(tree("stage1.{0-3}.norm stage2.{0-3}.norm")) == ["stage2.2.norm", "stage2.3.norm"]


def test_a_stem_a_body_and_a_head_are_no_blocks() -> None:
    model = tree("0.norm 1.layer{1-4}.{0-2}.bn{1-3} 2.norm")
    assert late(model) == [*expanded("1.layer4.{0-2}.bn{1-3}"), "2.norm"]


def test_a_model_that_is_one_norm_layer_keeps_it() -> None:
    assert early_affine_names(nn.LayerNorm(2)) == ["weight", "bias"]
    assert early_affine_names(nn.Linear(2, 2)) == []


def test_tied_weights_are_named_once() -> None:
    shared = nn.LayerNorm(2)
    assert early_affine_names(nn.Sequential(shared, shared, nn.LayerNorm(2))) == ["0.weight", "0.bias"]


def test_a_fork_can_own_these_alone() -> None:
    network = Network(layers(4))
    early = early_affine_names(network.model)
    assert [name for name, _ in network.fork(early).model.named_parameters()] == early
    assert len(list(network.fork("affine").parameters())) == 8
