"""Vision transformer (Dosovitskiy et al., ICLR 2021) with timm's key names: a source network with LayerNorm alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models.normalise import Normalise

EPS = 1e-6


class PatchEmbed(nn.Module):
    """Every patch of the image becomes one token."""

    def __init__(self, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×patches×width tokens."""
        tokens: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return tokens


class Attention(nn.Module):
    """softmax(q kᵀ / sqrt(d)) v in several heads of width d."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Let the tokens of each image attend to each other."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return attended


class MLP(nn.Module):
    """fc2(gelu(fc1(x))), four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token on its own."""
        transformed: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return transformed


class Block(nn.Module):
    """x + attention(norm1(x)), then + mlp(norm2(·))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPS)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after the block."""
        x = x + self.attn(self.norm1(x))
        tokens: Tensor = x + self.mlp(self.norm2(x))
        return tokens


class VisionTransformer(nn.Module):
    """ViT with a class token; takes N×3×image_size×image_size images in [0, 1] and normalises them inside.

    >>> VisionTransformer(image_size=8, width=6, depth=1, heads=2, classes=5)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        image_size: int = 32,
        patch_size: int = 4,
        width: int = 192,
        depth: int = 9,
        heads: int = 3,
        classes: int = 10,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        super().__init__()
        if image_size % patch_size or width % heads:
            found = f"image_size={image_size}, patch_size={patch_size}, width={width}, heads={heads}"
            raise BadSetting(f"patches must tile the image, and heads share the width evenly; found {found}")
        self.normalise = Normalise(mean, std)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, (image_size // patch_size) ** 2 + 1, width))
        nn.init.normal_(self.pos_embed, std=0.02)
        self.patch_embed = PatchEmbed(patch_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, EPS)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×classes logits, from the class token."""
        patches = self.patch_embed(self.normalise(x))
        tokens = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), patches), dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
