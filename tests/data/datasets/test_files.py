import io

import numpy as np
import pytest
from PIL import Image

from resitta.data.datasets.files import FileImages, checked_size, decode, fit, labelled
from resitta.errors import BadData, BadSetting

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)


def encoded(picture: Image.Image, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def test_decodes_as_stored() -> None:
    assert np.array_equal(decode(encoded(Image.fromarray(PIXELS)), "a.png", None), PIXELS)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    raw = encoded(Image.fromarray(PIXELS).convert(mode), "tiff")
    assert decode(raw, "a.tiff", None).shape == (6, 9, 3)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_damaged_pictures(kind: str) -> None:
    raw = encoded(Image.effect_noise((64, 64), 80), kind)
    for damaged in (raw[: len(raw) // 2], raw[:20], b"", b"<html>"):
        with pytest.raises(BadData, match=r"x/a\.png is not a readable image .*; restore it or remove it"):
            decode(damaged, "x/a.png", None)


def test_the_right_size_is_left_untouched() -> None:
    picture = Image.fromarray(PIXELS[:, :6])
    assert fit(picture, 6) is picture


@pytest.mark.parametrize(("width", "height"), [(640, 480), (333, 500), (100, 100), (257, 256)])
def test_shorter_side_to_256_then_the_centre(width: int, height: int) -> None:
    picture = Image.effect_noise((width, height), 80)
    scaled = picture.resize((256, 256 * height // width) if width < height else (256 * width // height, 256), 2)
    left, top = round((scaled.width - 224) / 2), round((scaled.height - 224) / 2)
    expected = np.asarray(scaled)[top : top + 224, left : left + 224]
    assert np.array_equal(np.asarray(fit(picture, 224)), expected)


@pytest.mark.parametrize("size", [1, 7, 32, 299])
def test_every_size_is_met(size: int) -> None:
    assert fit(Image.new("RGB", (50, 20)), size).size == (size, size)


@pytest.mark.parametrize("size", [0, -3, 2.5, "224"])
def test_bad_sizes(size: int) -> None:
    with pytest.raises(BadSetting, match="size must be a positive whole number"):
        checked_size(size)


def test_classes_are_sorted_as_names_not_as_paths() -> None:
    names, labels = labelled({"a": ["x.png"], "a-b": ["y.png"]}, "set")
    assert names == ["a/x.png", "a-b/y.png"]  # as whole paths, a-b/ would come before a/
    assert labels == [0, 1]


def test_no_file_may_be_another_kind() -> None:
    with pytest.raises(BadData, match=r"set/a/x\.csv is not an image file"):
        labelled({"a": ["x.csv"]}, "set")


def test_the_first_image_is_checked_at_once() -> None:
    with pytest.raises(BadData, match=r"set/a/x\.png is not a readable image"):
        FileImages(["a/x.png"], [0], lambda name: b"", origin="set")
