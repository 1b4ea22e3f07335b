"""Wide residual networks for 32×32 images, with the key names of RobustBench's checkpoints.

WRN-d-k (Zagoruyko & Komodakis, 2016) has three groups of (d - 4) / 6 pre-activation blocks with
16k, 32k and 64k channels; WRN-28-10 is the source network of Table 1.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models.normalise import Normalise


class PreActivationBlock(nn.Module):
    """shortcut + conv2(relu(bn2(conv1(h)))), with h = relu(bn1(x)).

    The shortcut is x itself, or a 1×1 convolution of h where the number of channels changes.
    """

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        widens = channels_in != channels
        self.convShortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if widens else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, not yet normalised: the next block does that."""
        h = F.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(h)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return shortcut + residual


def _group(channels_in: int, channels: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = PreActivationBlock(channels_in, channels, stride=stride)
    rest = [PreActivationBlock(channels, channels, stride=1) for _ in range(blocks - 1)]
    # The extra level is part of the public key names: block1.layer.0.conv1.weight.
    return nn.Sequential(OrderedDict(layer=nn.Sequential(first, *rest)))


class WideResNet(nn.Module):
    """WRN-depth-width; takes N×3×32×32 images in [0, 1].

    `depth` is 6n + 4. RobustBench's "Standard" WRN-28-10 was trained on plain [0, 1] images, hence the
    default `mean` and `std`; its AugMix WRN-40-2 takes (x - .5) / .5.

    >>> import torch
    >>> WideResNet(depth=10, width=1, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        depth: int = 28,
        width: int = 10,
        classes: int = 10,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        blocks, remainder = divmod(depth - 4, 6)
        if blocks < 1 or remainder:
            raise BadSetting(f"a wide ResNet's depth is 10, 16, 22, 28, ... (6n + 4); found {depth}")
        self.normalise = Normalise(mean, std)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block1 = _group(16, 16 * width, blocks=blocks, stride=1)
        self.block2 = _group(16 * width, 32 * width, blocks=blocks, stride=2)
        self.block3 = _group(32 * width, 64 * width, blocks=blocks, stride=2)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×classes logits."""
        x = self.conv1(self.normalise(x))
        x = self.block3(self.block2(self.block1(x)))
        features = F.relu(self.bn1(x)).mean(dim=(2, 3))
        logits: Tensor = self.fc(features)
        return logits
