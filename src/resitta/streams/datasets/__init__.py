"""Data sets on disk as one kind of image source: labels at once, pixels on demand.

>>> import numpy as np
>>> images = ArrayImages(np.zeros((2, 32, 32, 3), np.uint8), [0, 1])
>>> len(images), images.classes, images.read([1]).shape
(2, 2, torch.Size([1, 3, 32, 32]))
"""

from resitta.streams.datasets.arrays import ArrayImages
from resitta.streams.datasets.base import ImageSet
from resitta.streams.datasets.cifar import CifarBatches, CifarC
from resitta.streams.datasets.folders import ImageFolder
from resitta.streams.datasets.guess import holds_corruptions, open_images
from resitta.streams.datasets.imagenet import ImageNetC
from resitta.streams.datasets.zips import ImageZip

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
