import contextlib
import io
import struct
import time
import zlib
from collections.abc import Sequence

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.serve.helpers import array, picture

from resitta.serve.http_errors import Refused
from resitta.serve.images import Decoder, payloads, read_npy
from resitta.serve.routes_predict import to_floats

END = b"\r\n--x--\r\n"
KIND = "multipart/form-data; boundary=x"
LIMITED = Decoder(size=10, max_images=4, max_pixels=100_000)


def decoder(files: Sequence[bytes], decode: Decoder = LIMITED) -> torch.Tensor:
    return to_floats(torch.from_numpy(decode(files)))


def refusal(*files: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        decoder(files)
    return caught.value


def promised(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_of_the_right_size_stay_as_they_are(kind: str) -> None:
    raw = picture(kind)
    expected = np.array(Image.open(io.BytesIO(raw)).convert("RGB")) / 255
    found = decoder([raw])
    assert found.shape == (1, 3, 10, 10)
    assert torch.allclose(found[0], torch.from_numpy(expected).permute(2, 0, 1).float())


def test_pictures_of_16_bits_are_scaled() -> None:
    shades = np.linspace(0, 65_535, 100).reshape(10, 10)
    file = io.BytesIO()
    Image.fromarray(shades.astype(np.uint16)).save(file, "PNG")
    found = decoder([file.getvalue()], Decoder(size=10))[0]
    assert torch.allclose(found, torch.tensor(shades / 65_535).float().expand(3, -1, -1), atol=1 / 255)


def test_crop_takes_the_centre_and_stretch_takes_all() -> None:
    pixels = np.zeros((80, 160, 3), np.uint8)
    pixels[5:75, 45:115] = 255  # the central square of 7/8 of the shorter side
    found = decoder([array(pixels)])
    assert found[..., 1:-1, 1:-1].min() > 0.99
    assert found.min() > 0.7  # the border sees a little of its surroundings
    stretched = decoder([array(pixels)], Decoder(size=16, resize="stretch"))[0, 0]
    assert stretched[8].tolist()[:3] == [0, 0, 0]
    assert stretched[8, 8] > 0.99


def test_a_very_long_picture_is_no_trouble() -> None:
    assert decoder([picture(width=60_000, height=1)]).shape == (1, 3, 10, 10)


def test_arrays_of_pictures_and_of_floats() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 10, 10, 3), dtype=np.uint8)
    floats = (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    assert torch.equal(decoder([array(pixels)]), decoder([array(floats)]))
    assert torch.equal(decoder([array(floats[0])]), decoder([array(floats)])[:1])
    assert torch.equal(decoder([array(np.asfortranarray(floats))]), decoder([array(floats)]))


def test_several_payloads_keep_their_order() -> None:
    one, two = picture(seed=1), picture(seed=2)
    assert torch.equal(decoder([one, two]), torch.cat([decoder([one]), decoder([two])]))


@pytest.mark.parametrize("side", [30_000, 20_000, 1_000])
def test_promised_pixels_are_refused_before_they_are_made(side: int) -> None:
    assert refusal(promised(side, side)).status == 413


def test_pixels_of_all_images_count_together() -> None:
    large = picture(width=300, height=200)
    assert refusal(large, large).status == 413


def test_too_many_images_are_refused() -> None:
    assert refusal(*[picture()] * 5).status == 400
    assert refusal(array(np.zeros((5, 10, 10, 3), np.uint8))).status == 400


@pytest.mark.parametrize(
    "raw", [b"", b"GIF89a" + bytes(50), b"BM" + bytes(50), b"%PDF-1.4", b"PK\x03\x04" + bytes(99), b"<svg/>"]
)
def test_other_kinds_are_refused(raw: bytes) -> None:
    assert refusal(raw).status == 415


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_pictures_are_refused(kind: str) -> None:
    raw = picture(kind, width=60, height=60)
    assert {refusal(raw[: len(raw) * share // 10]).status for share in (5, 7, 9)} == {400}


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((3, 10, 10), np.int64),
        np.full((3, 10, 10), np.nan, np.float32),
        np.full((3, 10, 10), 255.0, np.float32),
        np.full((3, 10, 10), -0.1, np.float32),
        np.zeros((3, 9, 10), np.float32),
        np.zeros((10, 10, 4), np.uint8),
        np.zeros((0, 10, 10, 3), np.uint8),
        np.zeros(5, np.uint8),
        np.uint8(3),
    ],
)
def test_unsuitable_arrays_are_refused(values: object) -> None:
    assert refusal(array(values)).status == 400


def test_arrays_of_objects_are_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    assert refusal(file.getvalue()).status == 400


def test_an_array_may_not_promise_more_than_it_brings() -> None:
    raw = array(np.zeros((1, 10, 10, 3), np.uint8)).replace(b"(1, 10, 10, 3)", b"(9999999, 3, )")
    with pytest.raises(Refused, match="but 300 bytes follow"):
        read_npy(raw)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_are_decoded_or_refused_but_nothing_else(data: st.DataObject) -> None:
    whole = [picture(), picture("JPEG"), picture("WEBP"), array(np.zeros((3, 10, 10)))]
    raw = bytearray(data.draw(st.sampled_from(whole)))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Refused):
        assert decoder([bytes(raw)]).shape == (1, 3, 10, 10)


def part(
    content: bytes, disposition: str = 'form-data; name="images"; filename="a.png"', border: bytes = b"--x"
) -> bytes:
    return b"\r\n" + border + b"\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content


@pytest.mark.parametrize("contents", [[b"a"], [b"a\r\n", b"\r\n--y\r\n", b""], [b"--x", b"\r\n-x", b"x--x--"]])
def test_files_come_out_as_they_went_in(contents: list[bytes]) -> None:
    files = [("images", ("name", content)) for content in contents]
    request = httpx.Request("POST", "http://x", files=files)
    request.read()
    assert payloads(request.headers["content-type"], request.content, 9) == contents


def test_forms_that_others_write_are_read() -> None:
    body = part(b"a") + part(b"b", "form-data; filename*=UTF-8''%e2.png; name=x", b"--x \t") + END
    assert payloads(KIND, body, 9) == [b"a", b"b"]
    assert payloads(KIND, b"a preamble" + body + b"an epilogue", 9) == [b"a", b"b"]
    assert payloads('Multipart/Form-Data; charset=utf-8; boundary="x"', body[2:], 9) == [b"a", b"b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        part(b"a"),
        part(b"a", "form-data; name=a") + END,
        part(b"a", "attachment; filename=a") + END,
        b"\r\n--x\r\n" + END,
        b"\r\n--x\r\nA: " + b"a" * 9000 + b"\r\n\r\n" + END,
        part(b"a") * 10 + END,
        part(b"a", border=b"--xy") + b"\r\n--xy--",
    ],
)
def test_other_forms_are_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        payloads(KIND, body, 9)
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; x=y"])
def test_a_form_needs_a_boundary(kind: str) -> None:
    with pytest.raises(Refused, match="boundary"):
        payloads(kind, part(b"a") + END, 9)


@pytest.mark.parametrize("body", [b"\r\n--x" * 500_000, b"--x\r\n" * 500_000, b"\r\n" * 2_000_000, b"-" * 4_000_000])
def test_a_hostile_form_takes_no_longer_than_its_length(body: bytes) -> None:
    start = time.process_time()
    with pytest.raises(Refused):
        payloads(KIND, body, 9)
    assert time.process_time() - start < 2
