import colorsys
import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from resitta.errors import BadImages
from resitta.training import strong_view as views
from resitta.training.strong_view import (
    JITTER,
    Factor,
    View,
    ViewParameters,
    device_generator,
    identity,
    jitter,
    strong_view,
)

NEUTRAL = torch.tensor([[1.0, 1.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
SIZES = [(32, 32), (22, 22), (33, 33), (48, 56), (57, 48)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=seeded(seed))


def seen(images: Tensor, seed: int = 0, *, per_sample: bool = False, sharp: bool = False) -> Tensor:
    return strong_view(images, generator=seeded(seed), per_sample=per_sample, sharp=sharp)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "NOISE", 0.0)


@pytest.fixture(scope="module")
def torchvision() -> ModuleType:
    try:
        return importlib.import_module("torchvision.transforms.functional")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")


def geometry(
    angle: float = 0, shift: tuple[int, int] = (0, 0), scale: float = 1, sigma: float = 1e-3, flip: bool = False
) -> ViewParameters:
    """Return parameters that leave the colours alone."""
    return ViewParameters(
        factors=NEUTRAL,
        order=torch.arange(5).view(1, 5),
        angle=torch.tensor([angle]).double(),
        shift=torch.tensor([shift]).double(),
        scale=torch.tensor([scale]).double(),
        sigma=torch.tensor([sigma]).double(),
        flip=torch.tensor([flip]),
    )


def affine_reference(image: np.ndarray, parameters: ViewParameters) -> np.ndarray:
    """Move one H×W image about its centre by looking up, for each target, four sources; black outside."""
    height, width = image.shape
    turn, scale = np.deg2rad(parameters.angle.item()), parameters.scale.item()
    right, down = parameters.shift[0].tolist()
    y, x = np.mgrid[:height, :width].astype(float)
    x, y = x - (width - 1) / 2 - right, y - (height - 1) / 2 - down
    source_x = (x * np.cos(turn) + y * np.sin(turn)) / scale + (width - 1) / 2
    source_y = (y * np.cos(turn) - x * np.sin(turn)) / scale + (height - 1) / 2
    out = np.zeros_like(image)
    for row in (np.floor(source_y), np.floor(source_y) + 1):
        for column in (np.floor(source_x), np.floor(source_x) + 1):
            weight = (1 - np.abs(source_x - column)) * (1 - np.abs(source_y - row))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            out[inside] += weight[inside] * image[row[inside].astype(int), column[inside].astype(int)]
    return out


def blur_reference(image: np.ndarray, sigma: float) -> np.ndarray:
    distance = np.arange(-2, 3) ** 2
    kernel = np.exp(-(distance[:, None] + distance[None]) / (2 * sigma**2))
    padded = np.pad(image, 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5))
    return np.asarray(np.einsum("ijkl,kl->ij", windows, kernel / kernel.sum()))


def geometry_reference(images: Tensor, parameters: ViewParameters, *, sharp: bool = False) -> Tensor:
    """Pad, move, blur, crop, flip: one after the other, in float64, for each channel of each image."""
    height, width = images.shape[2:]
    top, left = height // 2, width // 2

    def one(channel: Tensor) -> Tensor:
        pads, pixels = ((top, top), (left, left)), channel.double().numpy()
        moved = affine_reference(np.pad(pixels, pads, mode="reflect" if sharp else "edge"), parameters)
        blurred = moved if sharp else blur_reference(moved, parameters.sigma.item())
        out = torch.from_numpy(blurred[top : top + height, left : left + width])
        return out.flip(1) if parameters.flip.item() else out

    return torch.stack([one(channel) for channel in images.flatten(0, 1)]).view(images.shape).to(images.dtype)


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize(("height", "width"), [(22, 22), (32, 32), (48, 72), (72, 48)])
@pytest.mark.parametrize("motion", [(1, 1, 1), (1, -1, -1), (-1, -1, 1), (-1, 1, -1)])
def test_the_padding_reaches_at_the_ends_of_the_ranges(
    height: int, width: int, motion: tuple[int, int, int], sharp: bool
) -> None:
    turn, right, down = motion
    shift = right * round(width / 8), down * round(height / 8)
    parameters, images = geometry(15 * turn, shift, scale=0.9, sigma=0.5, flip=right == down), rand(1, 1, height, width)
    expected = geometry_reference(images, parameters, sharp=sharp)
    torch.testing.assert_close(parameters.apply(images, sharp=sharp), expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize(("height", "width"), SIZES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_geometry_is_pad_move_blur_crop_flip(height: int, width: int, sharp: bool, seed: int) -> None:
    drawn = ViewParameters.draw(1, height, width, generator=seeded(seed))
    parameters, images = replace(drawn, factors=NEUTRAL), rand(1, 2, height, width, seed=seed)
    expected = geometry_reference(images, parameters, sharp=sharp)
    torch.testing.assert_close(parameters.apply(images, sharp=sharp), expected, atol=5e-5, rtol=0)


def test_a_sharp_view_is_jittered_and_moved_and_draws_no_noise() -> None:
    images, one, other = rand(3, 3, 24, 24), seeded(7), seeded(7)
    parameters = ViewParameters.draw(1, 24, 24, generator=one)
    expected = parameters.apply(images, sharp=True).clamp(0, 1)
    assert torch.equal(strong_view(images, generator=other, sharp=True), expected)
    assert torch.equal(one.get_state(), other.get_state())
    assert torch.equal(views.StrongView(seeded(7), sharp=True)(images), expected)


def test_a_mirrored_border_shows_no_border_pixel_twice() -> None:
    images = rand(1, 1, 4, 4).double()
    moved = geometry(shift=(2, 0)).apply(images, sharp=True)
    torch.testing.assert_close(moved, images[..., [2, 1, 0, 1]])
    torch.testing.assert_close(geometry(shift=(1, 0)).apply(images[..., :1], sharp=True), images[..., :1])


def test_whole_pixel_motions_only_copy_pixels() -> None:
    images = rand(2, 3, 6, 7).double()
    right, down, flipped = geometry(shift=(2, 0)), geometry(shift=(0, -1)), geometry(flip=True)
    torch.testing.assert_close(right.apply(images)[..., 2:], images[..., :-2])
    torch.testing.assert_close(right.apply(images)[..., :2], images[..., :1].expand(-1, -1, -1, 2))
    torch.testing.assert_close(down.apply(images)[..., :-1, :], images[..., 1:, :])
    torch.testing.assert_close(flipped.apply(images), images.flip(3))
    torch.testing.assert_close(geometry().apply(images), images)


def test_tiny_images_get_no_black_corners() -> None:
    parameters = geometry(15, (1, 1), 0.9, 0.5)
    torch.testing.assert_close(parameters.apply(torch.ones(1, 3, 8, 8)), torch.ones(1, 3, 8, 8))


@pytest.mark.usefixtures("no_noise")
def test_the_view_is_its_parameters_applied_and_values_outside_are_clipped_first() -> None:
    images = rand(3, 3, 16, 16) * 3 - 1
    expected = ViewParameters.draw(1, 16, 16, generator=seeded(5)).apply(images.clamp(0, 1))
    torch.testing.assert_close(seen(images, 5), expected)


def test_noise_is_gaussian_with_sigma_005() -> None:
    images = torch.full((8, 3, 32, 32), 0.5)
    noise = seen(images) - ViewParameters.draw(1, 32, 32, generator=seeded(0)).apply(images)
    assert noise.std().item() == pytest.approx(0.005, rel=0.03)
    assert abs(noise.mean().item()) < 2e-4
    assert ((noise.abs() < 0.005).float().mean().item()) == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_generator_decides(per_sample: bool) -> None:
    images = rand(4, 3, 16, 16)
    before = torch.get_rng_state()
    first = seen(images, 1, per_sample=per_sample)
    assert torch.equal(first, seen(images, 1, per_sample=per_sample))
    assert not torch.allclose(first, seen(images, 2, per_sample=per_sample), atol=0.05)
    assert torch.equal(torch.get_rng_state(), before)
    generator = seeded(1)
    first, second = (strong_view(images, generator=generator, per_sample=per_sample) for _ in range(2))
    assert not torch.allclose(first, second, atol=0.05)


def test_one_batch_shares_its_parameters() -> None:
    first, second = seen(rand(1, 3, 16, 16).repeat(2, 1, 1, 1))
    torch.testing.assert_close(first, second, atol=0.05, rtol=0)
    assert not torch.equal(first, second)


def test_per_sample_views_differ_and_do_not_see_each_other() -> None:
    images = rand(1, 3, 16, 16).repeat(4, 1, 1, 1)
    out = seen(images, per_sample=True)
    assert all((out[i] - out[j]).abs().max() > 0.1 for i in range(4) for j in range(i))
    images[1:] = rand(3, 3, 16, 16, seed=9)
    assert torch.equal(seen(images, per_sample=True)[0], out[0])


@pytest.mark.usefixtures("no_noise")
def test_per_sample_is_each_image_with_its_own_parameters() -> None:
    images = rand(6, 3, 16, 20)
    parameters = ViewParameters.draw(6, 16, 20, generator=seeded(0))
    alone = [parameters.part(slice(i, i + 1)).apply(images[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(seen(images, per_sample=True), torch.cat(alone))


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("images_at_a_time", [0.5, 2, 3])
def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch, per_sample: bool, images_at_a_time: float) -> None:
    images = rand(7, 3, 16, 16)
    whole = seen(images, per_sample=per_sample)
    monkeypatch.setattr(views, "CPU_PIXELS", int(images_at_a_time * 256))
    torch.testing.assert_close(seen(images, per_sample=per_sample), whole)


def test_parameters_fill_their_ranges() -> None:
    drawn = ViewParameters.draw(4000, 32, 64, generator=seeded(0))
    ends = [(0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3), (-15, 15), (0.9, 1.1), (0.001, 0.5)]
    columns = *drawn.factors.unbind(1), drawn.angle, drawn.scale, drawn.sigma
    for values, (low, high) in zip(columns, ends, strict=True):
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
    assert set(drawn.shift[:, 0].tolist()) == set(range(-8, 9))
    assert set(drawn.shift[:, 1].tolist()) == set(range(-4, 5))
    assert drawn.flip.double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_all_orders_of_the_colour_steps_are_equally_likely() -> None:
    order = ViewParameters.draw(12_000, 8, 8, generator=seeded(0)).order
    assert torch.equal(order.sort(1).values, torch.arange(5).expand(12_000, 5))
    counts = Counter(map(tuple, order.tolist())).values()
    assert len(counts) == 120
    assert 60 < min(counts) < max(counts) < 150


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 1, 8, 8), (2, 4, 9, 9), (1, 3, 17, 30), (0, 3, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_shape_and_dtype_are_kept_and_values_stay_images(
    shape: tuple[int, ...], dtype: torch.dtype, per_sample: bool
) -> None:
    images = rand(*shape).to(dtype)
    out = seen(images, per_sample=per_sample)
    assert (out.shape, out.dtype, out.device) == (images.shape, dtype, images.device)
    assert ((out >= 0) & (out <= 1)).all()


def test_precision_only_rounds_the_result() -> None:
    images = rand(2, 3, 64, 64).half()
    torch.testing.assert_close(seen(images), seen(images.float()).half())


def test_channels_last_is_kept_and_changes_no_value() -> None:
    images = rand(2, 3, 16, 16)
    out = seen(images.to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, seen(images))


def test_input_is_left_alone_also_in_inference_mode() -> None:
    images = rand(2, 3, 16, 16)
    with torch.inference_mode():
        inside = seen(images)
    assert torch.equal(images, rand(2, 3, 16, 16))
    assert torch.equal(inside, seen(images))


@pytest.mark.parametrize("images", [torch.zeros(3, 8, 8), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)])
def test_what_is_no_batch_of_float_images_is_refused(images: Tensor) -> None:
    with pytest.raises(BadImages, match=r"found torch\.\w+ of shape \(.*\)\. Convert with"):
        seen(images)


def test_identity_and_a_bound_strong_view_are_views() -> None:
    images, chosen = rand(2, 3, 8, 8), list[View]([identity, partial(strong_view, generator=seeded(0))])
    assert chosen[0](images) is images
    assert chosen[1](images).shape == images.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("per_sample", [False, True])
def test_on_cuda_nothing_waits_and_the_result_is_the_same(per_sample: bool) -> None:
    images = rand(9, 3, 32, 32)
    on_device = images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = seen(on_device, per_sample=per_sample)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out.cpu(), seen(images, per_sample=per_sample), atol=2e-5, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_whole_view_against_torchvision(torchvision: ModuleType, seed: int) -> None:
    images, drawn = rand(2, 3, 32, 32, seed=seed), ViewParameters.draw(1, 32, 32, generator=seeded(seed))
    names = ("brightness", "contrast", "saturation", "hue", "gamma")
    expected = images
    for index in drawn.order[0].tolist():
        adjust = getattr(torchvision, f"adjust_{names[index]}")
        expected = adjust(expected.clamp(1e-8, 1), drawn.factors[0, index].item())
    expected = torchvision.pad(expected, [16], padding_mode="edge")
    expected = torchvision.affine(
        expected,
        drawn.angle.item(),
        drawn.shift[0].int().tolist(),
        drawn.scale.item(),
        [0.0, 0.0],
        interpolation=torchvision.InterpolationMode.BILINEAR,
    )
    expected = torchvision.gaussian_blur(expected, [5, 5], [drawn.sigma.item()] * 2)
    expected = torchvision.center_crop(expected, [32, 32])
    expected = torchvision.hflip(expected) if drawn.flip.item() else expected
    torch.testing.assert_close(drawn.apply(images), expected, atol=5e-5, rtol=0)


Adjust = Callable[[Tensor, Factor], Tensor]
ADJUSTMENTS = [pytest.param(adjust, low, high, id=adjust.__name__) for adjust, low, high in JITTER]


def colours() -> Tensor:
    """Four images of random colours, among them black, white, grey, pure and two-channel ties."""
    images = torch.rand(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    special = torch.tensor(
        [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0.3, 0.3]]
    )
    images[0, :, 0], images[1, :, 1, :3] = special[:5].T, special[5:].T
    return images


def pixel_reference(name: str, pixel: list[float], factor: float, mean: float) -> list[float]:
    grey = 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]
    if name == "adjust_hue":
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        return list(colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value))
    if name == "adjust_gamma":
        return [max(value, 1e-8) ** factor for value in pixel]
    base = {"adjust_brightness": 0.0, "adjust_contrast": mean, "adjust_saturation": grey}[name]
    return [min(max(base + factor * (value - base), 0), 1) for value in pixel]


def reference(name: str, image: Tensor, factor: float) -> Tensor:
    pixels = image.double().permute(1, 2, 0).numpy()
    mean = float((pixels @ np.array([0.2989, 0.587, 0.114])).mean())
    rows = [[pixel_reference(name, pixel.tolist(), factor, mean) for pixel in row] for row in pixels]
    return torch.tensor(rows).permute(2, 0, 1).float()


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_against_pixel_by_pixel_arithmetic(adjust: Adjust, low: float, high: float, share: float) -> None:
    images, factor = colours(), low + share * (high - low)
    expected = torch.stack([reference(adjust.__name__, image, factor) for image in images])
    torch.testing.assert_close(adjust(images, factor), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("factor", [-0.5, -0.2, 0.0, 0.35, 0.5])
def test_hue_turns_all_the_way_round(factor: float) -> None:
    images = colours()
    expected = torch.stack([reference("adjust_hue", image, factor) for image in images])
    torch.testing.assert_close(views.adjust_hue(images, factor), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_a_factor_per_image_is_that_image_alone(adjust: Adjust, low: float, high: float) -> None:
    images, factors = colours(), torch.linspace(low, high, 4)
    alone = [adjust(image[None], factor.item()) for image, factor in zip(images, factors, strict=True)]
    torch.testing.assert_close(adjust(images, factors), torch.cat(alone))


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_the_input_is_left_alone(adjust: Adjust, low: float, high: float) -> None:
    images = colours()
    adjust(images, low)
    assert torch.equal(images, colours())


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_single_channel_has_no_saturation_and_no_hue(adjust: Adjust, low: float, high: float) -> None:
    images = colours()[:, :1]
    three = adjust(images.expand(-1, 3, -1, -1), high)[:, :1]
    torch.testing.assert_close(adjust(images, high), three, atol=1e-4, rtol=0)


def test_contrast_of_other_channel_counts_turns_about_the_mean_of_all_values() -> None:
    images = torch.rand(2, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = images.mean((1, 2, 3), keepdim=True) * 0.5 + images * 0.5
    torch.testing.assert_close(views.adjust_contrast(images, 0.5), expected)


def test_jitter_applies_the_adjustments_in_the_given_order() -> None:
    images, factors = colours(), torch.tensor([[0.7, 1.2, 1.4, 0.05, 0.8]])
    step_by_step = images
    for index in (4, 2, 0, 3, 1):
        step_by_step = JITTER[index][0](step_by_step, factors[0, index].item())
    out = jitter(images, factors, torch.tensor([[4, 2, 0, 3, 1]]))
    torch.testing.assert_close(out, step_by_step)
    assert not torch.allclose(out, jitter(images, factors, torch.arange(5).view(1, 5)), atol=1e-2)


def test_jitter_gives_every_image_its_own_factors_and_order() -> None:
    generator = torch.Generator().manual_seed(0)
    images, factors = colours(), 0.8 + 0.1 * torch.rand(4, 5, generator=generator)
    order = torch.stack([torch.randperm(5, generator=generator) for _ in images])
    alone = [jitter(images[i : i + 1], factors[i : i + 1], order[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(jitter(images, factors, order), torch.cat(alone))


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_against_torchvision(torchvision: ModuleType, adjust: Adjust, low: float, high: float) -> None:
    images = colours().clamp(1e-8, 1)
    for factor in (low, (low + 2 * high) / 3, high):
        expected = getattr(torchvision, adjust.__name__)(images, factor)
        torch.testing.assert_close(adjust(images, factor), expected, atol=1e-5, rtol=0)


def draws(seed: int, device: str = "cpu") -> torch.Tensor:
    generator = device_generator(torch.Generator().manual_seed(seed), device)
    return torch.randn(100, generator=generator, device=device).cpu()


def test_the_seed_decides_the_stream() -> None:
    assert torch.equal(draws(1), draws(1))
    assert not torch.equal(draws(1), draws(2))


def test_one_integer_is_drawn_so_the_next_stream_differs() -> None:
    generator, twin = (torch.Generator().manual_seed(3) for _ in range(2))
    first, second = (device_generator(generator, "cpu") for _ in range(2))
    torch.randint(2**63 - 1, (2,), generator=twin)
    assert first.initial_seed() != second.initial_seed()
    assert torch.equal(generator.get_state(), twin.get_state())


def test_global_randomness_is_left_alone() -> None:
    before = torch.get_rng_state()
    draws(1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_stream_is_reproducible() -> None:
    assert torch.equal(draws(1, "cuda"), draws(1, "cuda"))
