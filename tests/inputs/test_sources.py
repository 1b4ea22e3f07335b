"""PIL images, odd arrays and lists are read; what is damaged or unlike is refused."""

import io
from typing import Any

import numpy as np
import pytest
import torch

import resitta
from resitta.errors import BadImages
from resitta.inputs.sources import is_list_of_images

Image = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
RGB = Image.fromarray(PIXELS)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX"])
def test_colours_are_converted_as_pillow_does(mode: str) -> None:
    picture = RGB.convert(mode) if mode not in ("PA", "LAB") else Image.new(mode, (10, 12), 7)
    expected = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)[None].float() / 255
    assert torch.equal(resitta.images(picture), expected)


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey_stays_grey(mode: str) -> None:
    picture = RGB.convert(mode)
    expected = torch.from_numpy(np.array(picture.convert("L")))[None, None].float() / 255
    assert torch.equal(resitta.images(picture), expected)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_grey_is_scaled(mode: str) -> None:
    values = np.array([[0, 1, 30000], [65535, 7, 8]])
    kinds = {"I;16": values.astype(np.uint16), "I": values.astype(np.int32), "F": (values / 65535).astype(np.float32)}
    picture = Image.fromarray(kinds[mode])
    assert picture.mode == mode
    torch.testing.assert_close(resitta.images(picture)[0, 0], torch.from_numpy(values / 65535).float())


def test_deeper_grey_is_refused() -> None:
    with pytest.raises(BadImages, match="a PIL image of mode I must hold 0 to 65535, found 0 to 65536; scale it"):
        resitta.images(Image.fromarray(np.array([[0, 65536]], np.int32)))


def test_a_picture_of_three_rows_leaves_no_doubt() -> None:
    assert resitta.images(RGB.resize((10, 3))).shape == (1, 3, 3, 10)


def test_a_damaged_picture_is_refused() -> None:
    file = io.BytesIO()
    RGB.resize((200, 200)).save(file, "jpeg")
    with pytest.raises(BadImages, match="a PIL image of mode RGB is damaged"):
        resitta.images(Image.open(io.BytesIO(file.getvalue()[:1500])))


def test_grey_and_coloured_pictures_make_no_batch() -> None:
    with pytest.raises(BadImages, match=r"as many channels, found \[1, 3\].* PIL images with image.convert\('RGB'\)"):
        resitta.images([RGB, RGB.convert("L")])


def test_a_list_may_mix_kinds() -> None:
    batch = resitta.images([RGB, PIXELS, torch.from_numpy(PIXELS), PIXELS.transpose(2, 0, 1), PIXELS / 255])
    torch.testing.assert_close(batch.float(), resitta.images(RGB).expand(5, -1, -1, -1))


ODD: dict[str, Any] = {
    "backwards": PIXELS[..., ::-1],
    "upside down": PIXELS[::-1],
    "sliced": np.repeat(PIXELS, 2, axis=1)[:, ::2],
    "Fortran": np.asfortranarray(PIXELS),
    "big-endian": PIXELS.astype(">u2") * 257,
    "big-endian floats": (PIXELS / 255).astype(">f4"),
    "a subclass": np.ma.masked_array(PIXELS),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [*ODD, "read-only"])
def test_odd_arrays_are_read(kind: str) -> None:
    array = ODD[kind] if kind in ODD else np.frombuffer(PIXELS.tobytes(), np.uint8).reshape(PIXELS.shape)
    white = {"u": 255 if array.dtype.itemsize == 1 else 65535, "f": 1}[array.dtype.kind]
    expected = torch.from_numpy(np.array(array).astype(np.float32)).permute(2, 0, 1)[None] / white
    torch.testing.assert_close(resitta.images(array), expected, rtol=0, atol=1e-7)


def test_what_may_not_be_written_is_not_shared() -> None:
    array = np.full((1, 3, 8, 8), 0.5, np.float32)
    array.flags.writeable = False
    resitta.images(array).zero_()
    assert array.min() == 0.5


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW", "CHW", "HWC", "HW"])
def test_a_layout_names_the_axes(layout: Any) -> None:
    sides = {"N": 2, "C": 3, "H": 4, "W": 5}
    array = np.random.default_rng(0).integers(0, 256, [sides[axis] for axis in layout], dtype=np.uint8)
    batch = resitta.images(array, layout=layout)
    assert batch.shape == tuple(sides[axis] if axis in layout else 1 for axis in "NCHW")
    back = batch.permute(["NCHW".index(axis) for axis in [*(set("NCHW") - set(layout)), *layout]]).reshape(array.shape)
    assert torch.equal(back, torch.from_numpy(array).float() / 255)


def test_a_layout_of_other_axes_is_refused() -> None:
    with pytest.raises(BadImages, match=r"layout='NHWC' names 4 axes, found shape \(12, 10, 3\)"):
        resitta.images(PIXELS, layout="NHWC")


def test_a_list_of_images_is_told_from_a_pair_with_labels() -> None:
    image = torch.zeros(3, 8, 8)
    assert is_list_of_images([image, RGB, PIXELS])
    assert not any(map(is_list_of_images, ([image, 3], (image[None], torch.zeros(1)), [], image, [[image]])))
