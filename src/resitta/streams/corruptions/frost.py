"""Frost textures: the public ones where the package `imagecorruptions` is installed, otherwise painted ones.

The public sets draw from five photographs (the sixth that comes with them is never used). Only their files are
read; the package itself is not imported, as it does not run beside current versions of its dependencies.
"""

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.errors import require
from resitta.streams.corruptions.random import Draws

_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
