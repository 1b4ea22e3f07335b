"""Views of a batch for self-training: the teacher sees the weak one (`identity`), the student the strong one.

The strong view is that of CoTTA and RoTTA: colour jitter, a small random affine motion, a slight blur, a flip
and a little noise. The sharp one, ROID's, has neither blur nor noise, and mirrors the borders instead of replicating
them. Any callable from images to images can take its place.

The colour adjustments take one factor for all images or a tensor with one factor per image, and give the results of
torchvision's functions of the same names. Saturation and hue leave images without three channels as they are.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resitta.accel.cuda_graphs import Call, CudaGraphs
from resitta.errors import BadImages

View = Callable[[Tensor], Tensor]
"""Images in [0, 1] -> images in [0, 1], N×C×H×W both."""
Factor = float | Tensor

NOISE = 0.005
BLUR_RADIUS = 2
CPU_PIXELS = 8 * 224 * 224
"""Pixels per chunk on a CPU; in larger ones, allocating memory takes longer than the arithmetic."""


def identity(images: Tensor) -> Tensor:
    """Return the images themselves: the weak view, or a strong view without randomness."""
    return images


def device_generator(generator: torch.Generator, device: torch.device | str) -> torch.Generator:
    """Start a generator on `device`, seeded by one integer drawn from a CPU `generator`.

    A CPU generator can be saved, restored and compared whatever device the model is on. Use this one for large draws
    (noise, dropout masks) that should happen where the images are. Each call gives another stream.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device="cpu"))
    return torch.Generator(device=device).manual_seed(seed)


class StrongView(nn.Module):
    """The strong view bound to its generator, as a `View`; on a CUDA device its parts run as CUDA graphs."""

    def __init__(self, generator: torch.Generator, *, per_sample: bool = False, sharp: bool = False) -> None:
        super().__init__()
        self.generator, self.per_sample, self.sharp = generator, per_sample, sharp
        self.replay = CudaGraphs()

    def forward(self, images: Tensor) -> Tensor:
        """Return a random view of the images."""
        call = self.replay if images.is_cuda else operator.call
        return strong_view(images, generator=self.generator, per_sample=self.per_sample, sharp=self.sharp, call=call)


def strong_view(
    images: Tensor,
    *,
    generator: torch.Generator,
    per_sample: bool = False,
    sharp: bool = False,
    call: Call = operator.call,
) -> Tensor:
    """Return a random view of the images that keeps their labels.

    In this order: clip to [0, 1]; brightness, contrast, saturation, hue and gamma in random order; pad the edges,
    rotate, shift and scale; blur; crop the centre; flip; add noise; clip. Parameters are drawn from `generator`, a CPU
    generator, once per batch or, with `per_sample`, once per image; the noise is drawn on the images' device. A `sharp`
    view has no blur and no noise, and its padding mirrors the image. `call` runs each adjustment: directly, or by a
    `CudaGraphs`.

    >>> strong_view(torch.rand(4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """
    _check(images)
    count, _, height, width = images.shape
    parameters = ViewParameters.draw(count if per_sample else 1, height, width, generator=generator)
    noise = None if sharp else device_generator(generator, images.device)
    # Half precision would misplace the pixels of a large image.
    dtype = torch.promote_types(images.dtype, torch.float32)
    out = torch.empty_like(images)
    for part in _parts(images):
        view = parameters.part(part).apply(images[part].to(dtype).contiguous(), call, sharp=sharp)
        if noise is not None:
            view.add_(torch.empty_like(view).normal_(0, NOISE, generator=noise))
        out[part] = view.clamp_(0, 1)
    return out


def _check(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise BadImages(
            "The strong view takes N×C×H×W floats in [0, 1]; "
            f"found {images.dtype} of shape {tuple(images.shape)}. "
            "Convert with images.float() / 255 and add a batch dimension with images[None]."
        )


def _parts(images: Tensor) -> list[slice]:
    """Split the batch into chunks: one on an accelerator, of `CPU_PIXELS` on a CPU."""
    if images.device.type != "cpu":
        return [slice(None)]
    step = max(1, CPU_PIXELS // math.prod(images.shape[2:]))
    return [slice(start, start + step) for start in range(0, len(images), step)]


@dataclass(frozen=True, kw_only=True)
class ViewParameters:
    """All that is random in a strong view except the noise: one row for the whole batch, or one per image."""

    factors: Tensor
    """One column per entry of `JITTER`."""
    order: Tensor
    """The order in which the entries of `JITTER` are applied."""
    angle: Tensor
    """Degrees, clockwise."""
    shift: Tensor
    """Whole pixels to the right and down."""
    scale: Tensor
    """Above 1 enlarges."""
    sigma: Tensor
    """Standard deviation of the blur, in pixels."""
    flip: Tensor
    """Whether left and right change places."""

    @classmethod
    def draw(cls, count: int, height: int, width: int, *, generator: torch.Generator) -> "ViewParameters":
        """Draw `count` rows of parameters for images of this size."""

        def uniform(low: float, high: float) -> Tensor:
            return torch.empty(count, dtype=torch.float64, device="cpu").uniform_(low, high, generator=generator)

        # Half a side is padded at each end; the motion goes up to 1/16 of the padded side.
        reach = [(side + 2 * (side // 2)) / 16 for side in (width, height)]
        return cls(
            factors=torch.stack([uniform(low, high) for _, low, high in JITTER], dim=1),
            order=torch.stack([uniform(0, 1) for _ in JITTER], dim=1).argsort(dim=1),
            angle=uniform(-15, 15),
            shift=torch.stack([uniform(-most, most).round() for most in reach], dim=1),
            scale=uniform(0.9, 1.1),
            sigma=uniform(0.001, 0.5),
            flip=uniform(0, 1) < 0.5,
        )

    def part(self, rows: slice) -> "ViewParameters":
        """Select the parameters of some images; those drawn for the whole batch serve any of them."""
        if len(self.flip) == 1:
            return self
        return ViewParameters(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def apply(self, images: Tensor, call: Call = operator.call, *, sharp: bool = False) -> Tensor:
        """Clip, jitter, move and, unless `sharp`, blur the images, with no randomness left."""
        columns = self.factors, self.angle, self.shift, self.scale, self.sigma, self.flip
        numbers = torch.cat([column.double().view(len(self.flip), -1) for column in columns], dim=1)
        numbers = numbers.to(images.device, non_blocking=True)  # all in one copy
        colours, places = numbers[:, : len(JITTER)], numbers[:, len(JITTER) :]
        finish = _move_mirrored if sharp else _move_and_blur
        return call(finish, jitter(images.clamp(0, 1), colours, self.order, call), places)


def _move_and_blur(images: Tensor, places: Tensor) -> Tensor:
    """`places` holds what `ViewParameters` does after the colours, column by column."""
    angle, right, down, scale, sigma, flip = places.unbind(1)
    shift = torch.stack([right, down], dim=1)
    return blur(move(images, angle=angle, shift=shift, scale=scale, flip=flip, margin=BLUR_RADIUS), sigma)


def _move_mirrored(images: Tensor, places: Tensor) -> Tensor:
    angle, right, down, scale, _, flip = places.unbind(1)
    shift = torch.stack([right, down], dim=1)
    return move(images, angle=angle, shift=shift, scale=scale, flip=flip, mirrored=True)


def move(
    images: Tensor,
    *,
    angle: Tensor,
    shift: Tensor,
    scale: Tensor,
    flip: Tensor,
    margin: int = 0,
    mirrored: bool = False,
) -> Tensor:
    """Rotate and scale about the centre, shift, then flip; a margin of further pixels is for `blur` to use up.

    Before the flip, output pixel p shows the input at R(-angle) (p - shift) / scale, measured from the centre and
    bilinearly interpolated. The border is replicated or, with `mirrored`, the image is mirrored at the centres of its
    border pixels. Within the strong view's ranges that equals padding by half a side, moving and cropping the centre,
    for squares from 22×22 pixels on and up to a ratio of 3:2 from 48 pixels on.

    >>> still = {"angle": torch.zeros(1), "shift": torch.zeros(1, 2), "scale": torch.ones(1)}
    >>> move(torch.tensor([[[[1.0, 2.0]]]]), **still, flip=torch.tensor([True]), margin=2)[0, 0, 2].tolist()
    [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    """
    height, width = images.shape[2:]
    turn = angle.deg2rad()
    cos, sin, right, down, mirror = (
        per_image(values, images)[:, 0]
        for values in (turn.cos() / scale, turn.sin() / scale, *shift.unbind(1), 1 - 2 * flip.double())
    )
    x = mirror * _from_centre(width, margin, images) - right
    y = _from_centre(height, margin, images)[:, None] - down
    # grid_sample measures in half sides from the centre, sides of which mirrors end half a pixel earlier.
    across, along = (max(1, side - 1) if mirrored else side for side in (width, height))
    grid = torch.stack([(cos * x + sin * y) * (2 / across), (cos * y - sin * x) * (2 / along)], dim=-1)
    grid, padding = grid.expand(len(images), -1, -1, -1), "reflection" if mirrored else "border"
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=mirrored)


def _from_centre(side: int, margin: int, images: Tensor) -> Tensor:
    """Positions of a side's pixels, and of the margin's, measured from its centre."""
    pixels = torch.arange(-margin, side + margin, dtype=images.dtype, device=images.device)
    return pixels - (side - 1) / 2


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Convolve with a 5×5 Gaussian of standard deviation `sigma`; the outermost 2 pixels are used up."""
    distance = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=sigma.device)
    taps = torch.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weights = [per_image(tap, images) for tap in (taps / taps.sum(1, keepdim=True)).unbind(1)]
    return _weigh(_weigh(images, weights, dim=3), weights, dim=2)


def _weigh(images: Tensor, weights: list[Tensor], dim: int) -> Tensor:
    """Sum of the images moved along `dim` by 0, 1, 2, ... pixels, weighted."""
    length = images.shape[dim] - len(weights) + 1
    out = weights[0] * images.narrow(dim, 0, length)
    for start, weight in enumerate(weights[1:], start=1):
        out.addcmul_(weight, images.narrow(dim, start, length))
    return out


def per_image(values: Factor, images: Tensor) -> Tensor:
    """Shape one value for all images, or one value each, so that it broadcasts over the images."""
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
    """Blend each pixel with its own grey: factor 0 is a grey image, 1 the image, more exceeds it."""
    if images.shape[1] != 3:
        return images
    return torch.lerp(grey(images), images, per_image(factor, images)).clamp_(0, 1)


def adjust_hue(images: Tensor, factor: Factor) -> Tensor:
    """Turn every colour by `factor` of the colour circle; each pixel's highest and lowest values stay."""
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


def jitter(images: Tensor, factors: Tensor, order: Tensor, call: Call = operator.call) -> Tensor:
    """Apply all of `JITTER`. `factors` and `order` are 1×5 (the same for all images) or N×5, the order on the host.

    Column k of `factors` belongs to entry k of `JITTER`; column s of `order` names the entry of step s.
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
