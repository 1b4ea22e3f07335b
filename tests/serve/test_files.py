import io
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.serve.helpers import grey16, picture, scan_bomb

from resitta.serve import files
from resitta.serve.http_errors import Refused
from resitta.serve.images import Decoder, TooMuchWork

decoder = Decoder(size=10)


def refusal(raw: bytes) -> str:
    """Why a file is refused; that must not take long."""
    start = time.process_time()
    with pytest.raises(Refused) as caught:
        decoder([raw])
    assert time.process_time() - start < 0.5
    assert caught.value.status == 413
    return str(caught.value)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize(("mode", "scans"), [("L", 6), ("RGB", 10), ("CMYK", 18)])
def test_progressive_pictures_of_libjpeg_are_decoded(mode: str, scans: int) -> None:
    file = io.BytesIO()
    Image.new(mode, (40, 30)).save(file, "JPEG", progressive=True)
    assert files.passes(file.getvalue()) == scans
    assert decoder([file.getvalue()]).shape == (1, 3, 10, 10)


def test_a_picture_of_thousands_of_scans_is_refused_at_once() -> None:
    raw = scan_bomb(8000, 5000, 4000)
    assert len(raw) < 50_000
    assert "32 scans" in refusal(raw)


def test_scans_cannot_be_hidden_from_the_estimate_of_work() -> None:
    raw = scan_bomb(1000, 1000, 20)
    assert files.passes(raw) == 26
    for hidden in (raw.replace(b"\xff\xda", b"\xff\xff\xff\xda"), raw.replace(b"\xff\xda", b"\x00\x01\xff\xda")):
        assert files.passes(hidden) == 26
    assert Decoder(size=10, max_work=26_000_000)([raw]).shape == (1, 3, 10, 10)
    with pytest.raises(TooMuchWork):
        Decoder(size=10, max_work=25_999_999)([raw])


def test_what_follows_a_picture_or_is_told_of_it_is_no_scan() -> None:
    raw = picture("JPEG")
    film = raw + b"\xff\xda" * 1000  # as phones append it
    comment = b"\xff\xfe" + struct.pack(">H", 2002) + b"\xff\xda" * 1000
    for other in (film, raw[:2] + comment + raw[2:]):
        assert np.array_equal(decoder([other]), decoder([raw]))


@pytest.mark.parametrize(
    "junk",
    [b"\xff" * 400_000, b"\xff\xfe\x00\x02" * 100_000, b"\xff\x00" * 200_000, bytes(400_000), b"\xff\xf0" * 1000],
)
def test_metadata_that_takes_long_to_read_is_refused(junk: bytes) -> None:
    raw = picture("JPEG")
    assert raw[20:22] == b"\xff\xdb", "after the first segment"
    assert "segments" in refusal(raw[:20] + junk + raw[20:])


def test_a_picture_without_a_scan_is_refused_at_once() -> None:
    assert "segments" in refusal(b"\xff\xd8\xff" + bytes(1_000_000))


def test_floods_of_chunks_are_refused() -> None:
    raw = picture("PNG")
    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_000_000), 9))
    assert "compressed texts" in refusal(raw[:33] + profile * 100 + raw[33:])
    assert "chunks" in refusal(raw[:33] + chunk(b"tEXt", b"a\0b") * 1000 + raw[33:])
    assert "chunks" in refusal(raw[:33] + chunk(b"IDAT", b"") * 1000 + raw[33:])
    assert decoder([raw[:33] + profile + chunk(b"tEXt", b"a\0b") * 100 + raw[33:]]).shape == (1, 3, 10, 10)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_memory_is_limited_by_what_a_pixel_takes(mode: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (1000, 1000)).save(file, "PNG")
    needed = {"RGB": 4, "RGBA": 8, "L": 5, "LA": 8, "P": 5, "1": 5}[mode] * 1_000_000
    assert Decoder(size=10, max_memory=needed)([file.getvalue()]).shape == (1, 3, 10, 10)
    with pytest.raises(Refused, match="may take 3 MiB" if mode == "RGB" else "MiB"):
        Decoder(size=10, max_memory=needed - 1)([file.getvalue()])


def test_a_small_file_of_16_bits_cannot_take_much_memory() -> None:
    raw = grey16(8000, 5000)
    assert len(raw) < 100_000
    with pytest.raises(Refused, match="takes 381; make it smaller"):
        Decoder(size=10, max_memory=300 * 2**20)([raw])


def test_plain_files_have_one_scan_and_nothing_compressed_but_the_image() -> None:
    raw = {kind: picture(kind) for kind in ("PNG", "JPEG", "WEBP")}
    text = raw["PNG"][:33] + chunk(b"tEXt", b"a\0b") + raw["PNG"][33:]
    profile = raw["PNG"][:33] + chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(10))) + raw["PNG"][33:]
    animated = raw["PNG"][:33] + chunk(b"acTL", bytes(8)) + raw["PNG"][33:]
    assert [files.is_plain(one) for one in (raw["PNG"], raw["JPEG"], text)] == [True] * 3
    assert not any(files.is_plain(one) for one in (raw["WEBP"], profile, animated, scan_bomb(8, 8, 0), b"GIF89a"))
