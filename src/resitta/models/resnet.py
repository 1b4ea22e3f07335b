"""ResNet-50 for ImageNet, with torchvision's key names: the source network of Table 3."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import BadSetting
from resitta.models.normalise import Normalise


class Bottleneck(nn.Module):
    """relu(shortcut + 1×1(3×3(1×1(x)))), each convolution followed by BatchNorm.

    The stride sits on the 3×3 convolution, or on the first 1×1 as in the original paper.
    """

    def __init__(self, channels_in: int, planes: int, *, stride: int, stride_in_1x1: bool, bn_eps: float) -> None:
        super().__init__()
        channels = 4 * planes
        stride_1x1, stride_3x3 = (stride, 1) if stride_in_1x1 else (1, stride)
        self.conv1 = nn.Conv2d(channels_in, planes, 1, stride_1x1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes, bn_eps)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride_3x3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, bn_eps)
        self.conv3 = nn.Conv2d(planes, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels, bn_eps)
        self.downsample = nn.Sequential()
        if channels_in != channels:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels, bn_eps))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; an empty `downsample` is the identity."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        return F.relu(self.downsample(x) + h)


def stage(block: Callable[..., nn.Module], channels_in: int, planes: int, *, blocks: int, stride: int) -> nn.Sequential:
    """Blocks in sequence; the first one changes the number of channels and the resolution."""
    first = block(channels_in, planes, stride=stride)
    rest = [block(4 * planes, planes, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


class ResNet50(nn.Module):
    """ResNet-50; takes N×3×H×W images in [0, 1] and normalises them inside.

    The defaults are torchvision's network. Checkpoints of other origin may need `stride_in_1x1`, another
    `bn_eps`, `mean` or `std`; `layers` gives the blocks per stage: (3, 4, 23, 3) is ResNet-101.

    >>> import torch
    >>> ResNet50(layers=(1, 1, 1, 1), classes=5)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        classes: int = 1000,
        stride_in_1x1: bool = False,
        bn_eps: float = 1e-5,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        layers: Sequence[int] = (3, 4, 6, 3),
    ) -> None:
        super().__init__()
        if len(layers) != 4 or min(layers) < 1:
            raise BadSetting(f"layers counts the blocks of 4 stages, each at least 1; found {layers}")
        block = partial(Bottleneck, stride_in_1x1=stride_in_1x1, bn_eps=bn_eps)
        self.normalise = Normalise(mean, std)
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, bn_eps)
        self.layer1 = stage(block, 64, 64, blocks=layers[0], stride=1)
        self.layer2 = stage(block, 256, 128, blocks=layers[1], stride=2)
        self.layer3 = stage(block, 512, 256, blocks=layers[2], stride=2)
        self.layer4 = stage(block, 1024, 512, blocks=layers[3], stride=2)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return N×classes logits."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits
