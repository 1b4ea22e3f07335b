"""The image corruptions of CIFAR-C, Tiny-ImageNet-C and ImageNet-C for whole batches, on any device.

>>> import torch
>>> images = torch.rand(4, 3, 32, 32)
>>> noisy = corrupt(images, "gaussian_noise", severity=5, seed=1)
"""

from resitta.data.corruptions.api import CORRUPTIONS, EXTRA, SHORT, corrupt, full_name
from resitta.data.corruptions.weather import frost_texture_source
from resitta.data.corruptions.write import write_cifar_c, write_imagenet_c

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "SHORT",
    "corrupt",
    "frost_texture_source",
    "full_name",
    "write_cifar_c",
    "write_imagenet_c",
]
