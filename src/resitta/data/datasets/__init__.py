"""Data sets on disk as one kind of image source: labels at once, pixels on demand.

>>> import numpy as np
>>> images = ArrayImages(np.zeros((2, 32, 32, 3), np.uint8), [0, 1])
>>> len(images), images.classes, images.read([1]).shape
(2, 2, torch.Size([1, 3, 32, 32]))
"""

from resitta.data.datasets.base import ArrayImages, ImageSet
from resitta.data.datasets.cifar import CifarBatches, CifarC
from resitta.data.datasets.detect import holds_corruptions, open_images
from resitta.data.datasets.folders import ImageFolder, ImageZip
from resitta.data.datasets.imagenet import ImageNetC

__all__ = [
    "ArrayImages",
    "CifarBatches",
    "CifarC",
    "ImageFolder",
    "ImageNetC",
    "ImageSet",
    "ImageZip",
    "holds_corruptions",
    "open_images",
]
