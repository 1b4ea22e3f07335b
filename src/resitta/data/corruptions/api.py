"""One call for all corruptions: `corrupt(images, "fog", severity=3)`."""

import math

import torch
from torch import Tensor

from resitta import names
from resitta.data.corruptions import blur, digital, noise, spatter, weather
from resitta.data.corruptions.random import Draws, image_keys
from resitta.data.corruptions.tables import setting
from resitta.errors import BadImages, BadSetting, NonFiniteImages, UnknownName, near

CORRUPTIONS, EXTRA, SHORT = names.CORRUPTIONS, names.EXTRA, names.SHORT
# A corruption is the function of its name in one of these modules.
_MODULES = (blur, digital, noise, spatter, weather)
_FUNCTIONS = {name: vars(module)[name] for name in CORRUPTIONS + EXTRA for module in _MODULES if name in vars(module)}

# Pixels per chunk: small chunks stay in a CPU's cache, large ones fill a GPU.
_PIXELS_ON_CPU = 4 * 224**2
_PIXELS_ELSEWHERE = 80 * 224**2
_SMALLEST_SIDE = 8
# Rounding error: a float this close below a grey level counts as that level (the public sets use double precision).
_HAIR = 1e-3


def corrupt(images: Tensor, name: str, severity: int = 5, *, seed: int = 0) -> Tensor:
    """Corrupt images as the public sets CIFAR-C, Tiny-ImageNet-C and ImageNet-C were made.

    Takes N×3×H×W images, floats in [0, 1] or uint8, and returns the same dtype, truncated to 8-bit grey levels. The
    strength is that of the set whose side, 32, 64 or 224, is nearest to the images' shorter side. Randomness depends
    on the image's content, the seed, the name and the severity only: not on the rest of the batch or the device.

    >>> images = torch.full((2, 3, 32, 32), 0.5)
    >>> foggy = corrupt(images, "fog", severity=3)
    >>> foggy.shape, bool((foggy[0] == foggy[1]).all()), bool((foggy == corrupt(images, "fog", 3, seed=1)).all())
    (torch.Size([2, 3, 32, 32]), True, False)
    """
    name = full_name(name)
    _check(images, severity)
    pixels = images if images.dtype == torch.uint8 else (images.float() * 255).round_().byte()
    pixels = pixels.contiguous()
    corrupted = torch.empty_like(pixels)
    height, width = images.shape[2:]
    numbers = setting(name, severity, side=min(height, width))
    budget = _PIXELS_ON_CPU if images.device.type == "cpu" else _PIXELS_ELSEWHERE
    size = max(budget // (height * width), 1)
    with torch.no_grad():
        for start in range(0, len(images), size):
            part = pixels[start : start + size]
            draws = Draws(image_keys(part, f"{name} {severity} {seed}"))
            result = _FUNCTIONS[name](part.float(), draws, **numbers)
            corrupted[start : start + size] = result.add_(_HAIR).clamp_(0, 255)
    return corrupted if images.dtype == torch.uint8 else corrupted.to(images.dtype) / 255


def full_name(name: str) -> str:
    """Return the full name of a corruption given by its full or short name.

    >>> full_name("jpeg"), full_name("gaussian"), full_name("gaussian_blur")
    ('jpeg_compression', 'gaussian_noise', 'gaussian_blur')
    """
    if name in _FUNCTIONS:
        return name
    known = {short: full for full, short in SHORT.items()}
    if name not in known:
        raise UnknownName(f"there is no corruption '{name}'. {near(name, [*_FUNCTIONS, *known])}")
    return known[name]


def _check(images: Tensor, severity: int) -> None:
    if severity not in (1, 2, 3, 4, 5):
        raise BadSetting(f"severity must be 1, 2, 3, 4 or 5, not {severity!r}")
    found = f"{tuple(images.shape)} of {images.dtype}"
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < _SMALLEST_SIDE:
        raise BadImages(f"corruptions need N×3×H×W images with sides of at least 8 pixels, found {found}")
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise BadImages(f"corruptions need floats in [0, 1] or uint8, found {found}; convert the images")
    if not len(images):
        return
    low, high = (bound.item() for bound in images.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NonFiniteImages("some images hold NaN or Inf; repair or drop them")
    if low < 0 or high > 1:
        raise BadImages(f"float images must lie in [0, 1], found {low:.3g} to {high:.3g}; divide 8-bit values by 255")
