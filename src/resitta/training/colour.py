"""Colour adjustments of images in [0, 1], N×C×H×W, and the mix of them that the strong view starts with.

Each factor is one number for all images or a tensor with one number per image. The results are those of
torchvision's functions of the same names. Images without three channels have no colour: saturation and hue
leave them as they are.
"""

import torch
from torch import Tensor

from resitta.accel.cuda_graphs import Call, call_directly

Factor = float | Tensor


def per_image(values: Factor, images: Tensor) -> Tensor:
    """Shape one value for all images, or one value each, so that it broadcasts over the images.

    >>> per_image(torch.tensor([0.5, 2.0]), torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    if isinstance(values, Tensor):
        return values.to(images, non_blocking=True).view(-1, 1, 1, 1)
    return images.new_full((1, 1, 1, 1), values)


def grey(images: Tensor) -> Tensor:
    """Luma, .2989 R + .587 G + .114 B, or the mean of the channels when there are not three: N×1×H×W.

    >>> round(grey(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).item(), 4)
    0.2989
    """
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def adjust_brightness(images: Tensor, factor: Factor) -> Tensor:
    """Scale towards black (factor 0) or beyond the original (factor > 1).

    >>> adjust_brightness(torch.full((1, 3, 1, 1), 0.5), 0.5).unique().item()
    0.25
    """
    return (images * per_image(factor, images)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Factor) -> Tensor:
    """Blend each image with its own mean grey: factor 0 is that grey, 1 the image, more exceeds it.

    >>> adjust_contrast(torch.tensor([0.25, 0.75]).view(1, 1, 1, 2), 0.5).flatten().tolist()
    [0.375, 0.625]
    """
    # The grey of the mean colour is the mean of the grey pixels, for a fraction of the work.
    mean = grey(images.mean((2, 3), keepdim=True))
    return torch.lerp(mean, images, per_image(factor, images)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Factor) -> Tensor:
    """Blend each pixel with its own grey: factor 0 is a grey image, 1 the image, more exceeds it.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> torch.equal(adjust_saturation(red, 0.0), grey(red).expand_as(red))
    True
    """
    if images.shape[1] != 3:
        return images
    return torch.lerp(grey(images), images, per_image(factor, images)).clamp_(0, 1)


def adjust_hue(images: Tensor, factor: Factor) -> Tensor:
    """Turn every colour by `factor` of the colour circle; each pixel's highest and lowest values stay.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> adjust_hue(red, 0.5).flatten().tolist()
    [0.0, 1.0, 1.0]
    """
    if images.shape[1] != 3:
        return images
    low, high = images.amin(1), images.amax(1)
    chroma = high - low
    hue = (_hue(images, high, chroma) + 6 * per_image(factor, images)[:, 0]).remainder(6)
    # How much each channel rises from the lowest to the highest value: fully within 1/6 of its own colour.
    rises = (hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()
    return torch.stack([low + chroma * rise.clamp_(0, 1) for rise in rises], dim=1)


def _hue(images: Tensor, high: Tensor, chroma: Tensor) -> Tensor:
    """Place every pixel on the colour circle, in sixths of it: red at 0, green at 2, blue at 4; N×H×W."""
    red, green, blue = images.unbind(1)
    # Grey pixels have no chroma and no hue: any divisor but zero will do.
    divisor = chroma.clamp_min(torch.finfo(images.dtype).tiny)
    near_red, near_green, near_blue = green - blue, blue - red, red - green
    not_red = torch.where(high == green, 2 + near_green / divisor, 4 + near_blue / divisor)
    return torch.where(high == red, near_red / divisor, not_red)


def adjust_gamma(images: Tensor, factor: Factor) -> Tensor:
    """Raise to the power `factor`; black is lifted to 1e-8 first, where the power has a finite slope.

    >>> adjust_gamma(torch.full((1, 1, 1, 1), 0.5), 2.0).item()
    0.25
    """
    return images.clamp(1e-8, 1).pow_(per_image(factor, images))


JITTER = (
    (adjust_brightness, 0.6, 1.4),
    (adjust_contrast, 0.7, 1.3),
    (adjust_saturation, 0.5, 1.5),
    (adjust_hue, -0.06, 0.06),
    (adjust_gamma, 0.7, 1.3),
)
"""The strong view's adjustments, each with the range its factor is drawn from."""


def jitter(images: Tensor, factors: Tensor, order: Tensor, call: Call = call_directly) -> Tensor:
    """Apply all of `JITTER`. `factors` and `order` are 1×5 (the same for all images) or N×5, the order on the host.

    Column k of `factors` belongs to entry k of `JITTER`; column s of `order` names the entry of step s.

    >>> factors, order = torch.tensor([[0.5, 1.0, 1.0, 0.0, 1.0]]), torch.arange(5).view(1, 5)
    >>> jitter(torch.full((2, 3, 1, 1), 0.5), factors, order).unique().item()
    0.25
    """
    if len(order) == 1:
        for index in order[0].tolist():
            images = call(JITTER[index][0], images, factors[:, index])
        return images
    for step in order.unbind(1):
        images = _one_step_each(images, factors, step)
    return images


def _one_step_each(images: Tensor, factors: Tensor, step: Tensor) -> Tensor:
    """Apply to image i the adjustment `step[i]`: one call per adjustment, for all the images that want it."""
    out = torch.empty_like(images)
    for index, (adjust, _, _) in enumerate(JITTER):
        rows = (step == index).nonzero().squeeze(1)
        here = rows.to(images.device, non_blocking=True)
        out[here] = adjust(images[here], factors[rows.to(factors.device, non_blocking=True), index])
    return out
