"""ResNet-26 with GroupNorm for 32×32 images: a source network without BatchNorm, small enough for a CPU."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models.normalise import Normalise

GROUPS = 8


class GroupNormBlock(nn.Module):
    """shortcut + conv2(relu(gn2(conv1(h)))), with h = relu(gn1(x)).

    The shortcut is x itself, or a 1×1 convolution of h where the number of channels or the resolution changes.
    """

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.gn1 = nn.GroupNorm(GROUPS, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.gn2 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        changes = channels_in != channels or stride != 1
        self.down = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, not yet normalised: the next block does that."""
        h = F.relu(self.gn1(x))
        shortcut = x if self.down is None else self.down(h)
        residual: Tensor = self.conv2(F.relu(self.gn2(self.conv1(h))))
        return shortcut + residual


class ResNet26GN(nn.Module):
    """Pre-activation ResNet with GroupNorm; takes N×3×H×W images in [0, 1] and normalises them inside.

    `channels` are those of the three groups of `blocks` blocks each; 4 blocks make 26 layers.

    >>> import torch
    >>> ResNet26GN(channels=(8, 8, 16), blocks=1, classes=5)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        channels: Sequence[int] = (32, 64, 128),
        blocks: int = 4,
        classes: int = 10,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        super().__init__()
        if blocks < 1 or any(width < 1 or width % GROUPS for width in channels) or not channels:
            found = f"blocks={blocks}, channels={tuple(channels)}"
            raise BadSetting(
                f"each group needs at least one block, and channels in multiples of {GROUPS}; found {found}"
            )
        self.normalise = Normalise(mean, std)
        self.conv = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        made: list[nn.Module] = []
        before = channels[0]
        for group, width in enumerate(channels):
            for number in range(blocks):
                made.append(GroupNormBlock(before, width, stride=2 if group and not number else 1))
                before = width
        self.blocks = nn.Sequential(*made)
        self.gn = nn.GroupNorm(GROUPS, before)
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×classes logits."""
        x = self.blocks(self.conv(self.normalise(x)))
        features = F.relu(self.gn(x)).mean(dim=(2, 3))
        logits: Tensor = self.fc(features)
        return logits
