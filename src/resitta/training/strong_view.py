"""Views of a batch for self-training: the teacher sees the weak one (`identity`), the student the strong one.

The strong view is that of CoTTA and RoTTA: colour jitter, a small random affine motion, a slight blur, a flip
and a little noise. Any callable from images to images can take its place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resitta.accel.cuda_graphs import Call, Replay, call_directly
from resitta.errors import BadImages
from resitta.training.colour import JITTER, jitter, per_image
from resitta.training.randomness import device_generator

View = Callable[[Tensor], Tensor]
"""Images in [0, 1] -> images in [0, 1], N×C×H×W both."""

NOISE = 0.005
BLUR_RADIUS = 2
CPU_PIXELS = 8 * 224 * 224
"""How many pixels a CPU takes at a time: with more, fresh memory costs it more than the arithmetic."""


def identity(images: Tensor) -> Tensor:
    """Return the images themselves: the weak view, and a strong view that makes a run free of chance.

    >>> identity(torch.ones(1)).item()
    1.0
    """
    return images


class StrongView(nn.Module):
    """The strong view bound to its generator, as a `View`; on a CUDA device its parts are replayed.

    >>> view = StrongView(torch.Generator().manual_seed(0))
    >>> view(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 3, 32, 32])
    """

    def __init__(self, generator: torch.Generator, *, per_sample: bool = False) -> None:
        super().__init__()
        self.generator, self.per_sample = generator, per_sample
        self.replay = Replay()

    def forward(self, images: Tensor) -> Tensor:
        """Return a random view of the images."""
        return strong_view(images, generator=self.generator, per_sample=self.per_sample, call=self.replay)


def strong_view(
    images: Tensor, *, generator: torch.Generator, per_sample: bool = False, call: Call = call_directly
) -> Tensor:
    """Look at the images in another light, from another place: a random view with the same labels.

    In this order: clip to [0, 1]; brightness, contrast, saturation, hue and gamma in random order; pad the
    edges, rotate, shift and scale; blur; crop the centre; flip; add noise; clip. The parameters are drawn
    from `generator`, a CPU generator, once for the whole batch or, with `per_sample`, once for every image;
    the noise, on the images' device, for every value. Saturation and hue are skipped for images that do not
    have three channels. `call` is how each adjustment is called: directly, or by a `Replay`.

    >>> strong_view(torch.rand(4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """
    _check(images)
    count, _, height, width = images.shape
    parameters = ViewParameters.draw(count if per_sample else 1, height, width, generator=generator)
    noise = device_generator(generator, images.device)
    # Half precision would misplace the pixels of a large image.
    dtype = torch.promote_types(images.dtype, torch.float32)
    out = torch.empty_like(images)
    for part in _parts(images):
        view = parameters.part(part).apply(images[part].to(dtype).contiguous(), call)
        grain = torch.empty_like(view).normal_(0, NOISE, generator=noise)
        out[part] = view.add_(grain).clamp_(0, 1)
    return out


def _check(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise BadImages(
            "The strong view takes N×C×H×W floats in [0, 1]; "
            f"found {images.dtype} of shape {tuple(images.shape)}. "
            "Convert with images.float() / 255 and add a batch dimension with images[None]."
        )


def _parts(images: Tensor) -> list[slice]:
    """Cut the batch into what is worked on at a time: all of it on an accelerator, `CPU_PIXELS` on a CPU."""
    if images.device.type != "cpu":
        return [slice(None)]
    step = max(1, CPU_PIXELS // math.prod(images.shape[2:]))
    return [slice(start, start + step) for start in range(0, len(images), step)]


@dataclass(frozen=True, kw_only=True)
class ViewParameters:
    """All that is random in a strong view except the noise: one row for the whole batch, or one per image.

    >>> parameters = ViewParameters.draw(3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> parameters.factors.shape, bool((parameters.angle.abs() <= 15).all())
    (torch.Size([3, 5]), True)
    """

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

    def apply(self, images: Tensor, call: Call = call_directly) -> Tensor:
        """Clip, jitter, move and blur the images, with no randomness left."""
        columns = self.factors, self.angle, self.shift, self.scale, self.sigma, self.flip
        numbers = torch.cat([column.double().view(len(self.flip), -1) for column in columns], dim=1)
        numbers = numbers.to(images.device, non_blocking=True)  # all in one copy
        colours, places = numbers[:, : len(JITTER)], numbers[:, len(JITTER) :]
        return call(_move_and_blur, jitter(images.clamp(0, 1), colours, self.order, call), places)


def _move_and_blur(images: Tensor, places: Tensor) -> Tensor:
    """`places` holds what `ViewParameters` does after the colours, column by column."""
    angle, right, down, scale, sigma, flip = places.unbind(1)
    shift = torch.stack([right, down], dim=1)
    return blur(move(images, angle=angle, shift=shift, scale=scale, flip=flip), sigma)


def move(images: Tensor, *, angle: Tensor, shift: Tensor, scale: Tensor, flip: Tensor) -> Tensor:
    """Rotate and scale about the centre, shift, then flip, with a margin of 2 pixels that `blur` uses up.

    Before the flip, output pixel p shows the input at R(-angle) (p - shift) / scale, measured from the centre
    and bilinearly interpolated. Reading beyond the border yields the border: the same as padding each end by
    half a side, moving, and cropping the centre, as long as the padding reaches. It does within the strong
    view's ranges for squares from 22×22 pixels on, and up to a ratio of 3:2 from 48 pixels on. Beyond that,
    the edges continue where the padded image would end in black.

    >>> still = {"angle": torch.zeros(1), "shift": torch.zeros(1, 2), "scale": torch.ones(1)}
    >>> move(torch.tensor([[[[1.0, 2.0]]]]), **still, flip=torch.tensor([True]))[0, 0, 2].tolist()
    [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    """
    height, width = images.shape[2:]
    turn = angle.deg2rad()
    cos, sin, right, down, mirror = (
        per_image(values, images)[:, 0]
        for values in (turn.cos() / scale, turn.sin() / scale, *shift.unbind(1), 1 - 2 * flip.double())
    )
    x = mirror * _from_centre(width, images) - right
    y = _from_centre(height, images)[:, None] - down
    # grid_sample measures in half sides from the centre.
    grid = torch.stack([(cos * x + sin * y) * (2 / width), (cos * y - sin * x) * (2 / height)], dim=-1)
    return F.grid_sample(images, grid.expand(len(images), -1, -1, -1), padding_mode="border", align_corners=False)


def _from_centre(side: int, images: Tensor) -> Tensor:
    """Positions of a side's pixels, and of the margin's, measured from its centre."""
    pixels = torch.arange(-BLUR_RADIUS, side + BLUR_RADIUS, dtype=images.dtype, device=images.device)
    return pixels - (side - 1) / 2


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Convolve with a 5×5 Gaussian of standard deviation `sigma`; the outermost 2 pixels are used up.

    >>> blur(torch.ones(1, 1, 6, 7), torch.tensor([0.5])).shape
    torch.Size([1, 1, 2, 3])
    """
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
