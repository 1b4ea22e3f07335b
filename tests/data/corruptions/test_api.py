import pytest
import torch
from torch import Tensor

from resitta.data.corruptions import CORRUPTIONS, EXTRA, SHORT, corrupt, full_name
from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws
from resitta.errors import BadImages, BadSetting, NonFiniteImages, UnknownName

ALL = CORRUPTIONS + EXTRA


def photographs(n: int, height: int, width: int) -> Tensor:
    """Coloured shapes of all sizes, in 8 bits."""
    noise = Draws(torch.arange(n))
    soft = smooth(noise.normal(3, height, width), 3.0) * 350 + noise.normal(3, height, width) * 5
    return (soft + 128).clamp(0, 255).byte()


def test_the_papers_order_and_short_names() -> None:
    short = "motion snow fog shot defocus contrast zoom brightness frost elastic glass gaussian pixelate jpeg impulse"
    assert [SHORT[name] for name in CORRUPTIONS] == short.split()
    assert [full_name(name) for name in short.split()] == list(CORRUPTIONS)
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert all(full_name(SHORT[name]) == name for name in ALL)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("severity", [1, 5])
def test_an_image_is_corrupted_the_same_alone_in_a_batch_and_in_another_order(name: str, severity: int) -> None:
    images = photographs(5, 32, 32)
    together = corrupt(images, name, severity)
    alone = torch.cat([corrupt(images[i : i + 1], name, severity) for i in range(5)])
    turned = corrupt(images.flip(0), name, severity).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, turned)
    assert not torch.equal(together, images)


@pytest.mark.parametrize("name", ALL)
def test_parts_of_a_large_batch_fit_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photographs(5, 24, 40)
    whole = corrupt(images, name, 3)
    monkeypatch.setattr("resitta.data.corruptions.api._PIXELS_ON_CPU", 2 * 24 * 40)
    assert torch.equal(corrupt(images, name, 3), whole)


@pytest.mark.parametrize("name", ALL)
def test_floats_and_bytes_give_the_same_8_bit_image(name: str) -> None:
    images = photographs(2, 32, 32)
    as_bytes = corrupt(images, name, 4)
    as_floats = corrupt(images.float() / 255, name, 4)
    as_halves = corrupt(images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).double() / 255, name, 4)
    assert as_bytes.dtype == torch.uint8
    assert as_floats.dtype == torch.float32
    assert as_halves.dtype == torch.float64
    assert torch.equal(as_bytes.float() / 255, as_floats)
    assert torch.equal(as_bytes.double() / 255, as_halves)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [(8, 8), (9, 31), (64, 64), (100, 80)])
def test_any_size_from_8_pixels_works_at_every_severity(name: str, size: tuple[int, int]) -> None:
    images = photographs(2, *size)
    for severity in (1, 2, 3, 4, 5):
        assert corrupt(images, name, severity).shape == images.shape


@pytest.mark.parametrize("name", ALL)
def test_flat_images_work(name: str) -> None:
    for level in (0, 128, 255):
        flat = torch.full((1, 3, 32, 32), level, dtype=torch.uint8)
        assert corrupt(flat, name, 5).shape == flat.shape


FIXED = {
    *("defocus_blur", "contrast", "zoom_blur", "brightness"),
    *("pixelate", "jpeg_compression", "gaussian_blur", "saturate"),
}


@pytest.mark.parametrize("name", ALL)
def test_the_seed_changes_the_random_corruptions_only(name: str) -> None:
    images = photographs(2, 32, 32)
    assert torch.equal(corrupt(images, name, seed=1), corrupt(images, name, seed=2)) == (name in FIXED)
    assert torch.equal(corrupt(images, name, seed=2), corrupt(images, name, seed=2))


@pytest.mark.parametrize("name", ["gaussian_noise", "contrast", "jpeg_compression", "pixelate", "zoom_blur"])
def test_the_damage_grows_with_the_severity(name: str) -> None:
    images = photographs(4, 224, 224)
    damage = [(corrupt(images, name, s).float() - images).abs().mean().item() for s in (1, 3, 5)]
    assert damage == sorted(damage)
    assert damage[0] > 0.5


def test_the_callers_images_and_random_state_stay_untouched() -> None:
    images = photographs(2, 32, 32)
    before, state = images.clone(), torch.get_rng_state()
    for name in ALL:
        corrupt(images, name)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_results_are_cut_off_to_whole_levels_not_rounded() -> None:
    images = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    images[..., :16] = 101
    assert (corrupt(images, "contrast", 5) == 100).all()


def test_no_images_give_no_images() -> None:
    for name in ALL:
        assert corrupt(torch.zeros(0, 3, 32, 32), name).shape == (0, 3, 32, 32)


def test_works_in_inference_mode_and_afterwards() -> None:
    images = photographs(1, 40, 40)
    with torch.inference_mode():
        inside = corrupt(images, "glass_blur")
    assert torch.equal(corrupt(images, "glass_blur"), inside)


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'glass_blur'"):
        corrupt(torch.zeros(1, 3, 32, 32), "glas_blur")


@pytest.mark.parametrize("severity", [0, 6, 2.5])
def test_other_severities_are_refused(severity: int) -> None:
    with pytest.raises(BadSetting, match="severity must be"):
        corrupt(torch.zeros(1, 3, 32, 32), "fog", severity)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(3, 32, 32),
        torch.zeros(1, 1, 32, 32),
        torch.zeros(1, 3, 7, 32),
        torch.zeros(1, 3, 32, 32, dtype=torch.int64),
        torch.full((1, 3, 32, 32), 1.5),
        torch.full((1, 3, 32, 32), -0.1),
    ],
)
def test_bad_images_are_refused(images: Tensor) -> None:
    with pytest.raises(BadImages, match="found"):
        corrupt(images, "fog")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_images_that_are_not_finite_are_refused(value: float) -> None:
    images = torch.zeros(2, 3, 32, 32)
    images[1, 2, 3, 4] = value
    with pytest.raises(NonFiniteImages, match="NaN or Inf"):
        corrupt(images, "fog")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ALL)
def test_a_gpu_gives_the_same_up_to_rounding(name: str) -> None:
    images = photographs(4, 64, 64)
    on_cpu, on_gpu = corrupt(images, name), corrupt(images.cuda(), name)
    assert on_gpu.is_cuda
    assert (on_cpu.int() - on_gpu.cpu().int()).abs().float().mean() < 0.05
