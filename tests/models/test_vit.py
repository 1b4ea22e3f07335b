import math

import pytest
import torch
from torch import Tensor, nn

from resitta.errors import BadImages, BadSetting
from resitta.models import VisionTransformer
from resitta.training.network import Network

# A sample of the names in timm's VisionTransformer(32, 4, embed_dim=192, depth=9, num_heads=3, num_classes=10).
NAMES = {
    "cls_token": (1, 1, 192),
    "pos_embed": (1, 65, 192),
    "patch_embed.proj.weight": (192, 3, 4, 4),
    "patch_embed.proj.bias": (192,),
    "blocks.0.norm1.weight": (192,),
    "blocks.0.attn.qkv.weight": (576, 192),
    "blocks.0.attn.qkv.bias": (576,),
    "blocks.8.attn.proj.weight": (192, 192),
    "blocks.8.norm2.bias": (192,),
    "blocks.8.mlp.fc1.weight": (768, 192),
    "blocks.8.mlp.fc2.bias": (192,),
    "norm.weight": (192,),
    "head.weight": (10, 192),
    "head.bias": (10,),
}


def reference(state: dict[str, Tensor], image: Tensor, *, patch: int, heads: int) -> Tensor:
    """The logits of one image, written over the state_dict alone, patch by patch and head by head."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        spread = (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
        return centred / spread * state[f"{name}.weight"] + state[f"{name}.bias"]

    def attention(x: Tensor, name: str) -> Tensor:
        width = x.shape[1]
        query, key, value = linear(x, f"{name}.qkv").chunk(3, dim=1)
        parts = []
        for some in torch.arange(width).chunk(heads):
            weights = (query[:, some] @ key[:, some].T / math.sqrt(len(some))).softmax(1)
            parts.append(weights @ value[:, some])
        return linear(torch.cat(parts, dim=1), f"{name}.proj")

    x = (image - 0.5) / 0.5
    rows, columns = x.shape[1] // patch, x.shape[2] // patch
    patches = [
        x[:, patch * row : patch * (row + 1), patch * column : patch * (column + 1)].flatten()
        for row in range(rows)
        for column in range(columns)
    ]
    embedded = torch.stack(patches) @ state["patch_embed.proj.weight"].flatten(1).T + state["patch_embed.proj.bias"]
    tokens = torch.cat((state["cls_token"][0], embedded)) + state["pos_embed"][0]
    for index in range(sum(name.endswith("norm1.weight") for name in state)):
        block = f"blocks.{index}"
        tokens = tokens + attention(norm(tokens, f"{block}.norm1"), f"{block}.attn")
        h = linear(norm(tokens, f"{block}.norm2"), f"{block}.mlp.fc1")
        tokens = tokens + linear(h * (1 + torch.erf(h / math.sqrt(2))) / 2, f"{block}.mlp.fc2")
    return linear(norm(tokens, "norm"), "head")[0]


def random_vit() -> nn.Module:
    model = VisionTransformer(image_size=12, patch_size=4, width=12, depth=2, heads=3, classes=7).double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.1, 0.5, generator=generator)
    return model


def test_it_computes_what_the_reference_computes() -> None:
    model = random_vit()
    images = torch.rand(3, 3, 12, 12, dtype=torch.float64)
    expected = torch.stack([reference(model.state_dict(), image, patch=4, heads=3) for image in images])
    torch.testing.assert_close(model(images), expected)


def test_names_and_shapes_are_those_of_timm() -> None:
    with torch.device("meta"):
        model = VisionTransformer()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes.items() >= NAMES.items()
    assert len(shapes) == 8 + 12 * 9
    assert sum(p.numel() for p in model.parameters()) == 4_028_170


def test_it_computes_what_timm_computes() -> None:
    theirs = pytest.importorskip("timm.models.vision_transformer", exc_type=ImportError)
    ours = random_vit()
    options = {"img_size": 12, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 7}
    model = theirs.VisionTransformer(**options).double().eval()
    model.load_state_dict(ours.state_dict())
    assert list(model.state_dict()) == list(ours.state_dict())
    images = torch.rand(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(images), model((images - 0.5) / 0.5))


def test_images_of_another_size_are_refused_with_both_sizes() -> None:
    with pytest.raises(BadImages, match=r"the model refused images of shape \(2, 3, 16, 16\)"):
        Network(random_vit())(torch.rand(2, 3, 16, 16).double())


@pytest.mark.parametrize("options", [{"image_size": 30}, {"width": 100}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(BadSetting, match="patches must tile the image, and heads share the width evenly; found image"):
        VisionTransformer(**options)  # type: ignore[arg-type]
