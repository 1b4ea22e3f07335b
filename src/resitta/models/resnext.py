"""ResNeXt-29 for 32×32 images, with the key names of the AugMix code's checkpoints.

ResNeXt (Xie et al., 2017) splits the 3×3 convolution of a bottleneck into `cardinality` groups. Trained
with AugMix on CIFAR-100, cardinality 4 and base width 32 is the source network of Table 2.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from resitta.models.normalise import Normalise
from resitta.models.resnet import stage


class GroupedBottleneck(nn.Module):
    """relu(shortcut + expand(grouped 3×3(reduce(x)))), each convolution followed by BatchNorm."""

    def __init__(self, channels_in: int, planes: int, *, cardinality: int, base_width: int, stride: int) -> None:
        super().__init__()
        inner = cardinality * (planes * base_width // 64)
        channels = 4 * planes
        self.conv_reduce = nn.Conv2d(channels_in, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential()
        if channels_in != channels:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; an empty `downsample` is the identity."""
        h = F.relu(self.bn_reduce(self.conv_reduce(x)))
        h = F.relu(self.bn(self.conv_conv(h)))
        h = self.bn_expand(self.conv_expand(h))
        return F.relu(self.downsample(x) + h)


class ResNeXt29(nn.Module):
    """ResNeXt-29, 3 stages of 3 blocks; takes N×3×32×32 images in [0, 1] and normalises them inside.

    >>> import torch
    >>> ResNeXt29(base_width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """

    def __init__(
        self,
        *,
        cardinality: int = 4,
        base_width: int = 32,
        classes: int = 100,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        super().__init__()
        block = partial(GroupedBottleneck, cardinality=cardinality, base_width=base_width)
        self.normalise = Normalise(mean, std)
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = stage(block, 64, 64, blocks=3, stride=1)
        self.stage_2 = stage(block, 256, 128, blocks=3, stride=2)
        self.stage_3 = stage(block, 512, 256, blocks=3, stride=2)
        self.classifier = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×classes logits."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits
