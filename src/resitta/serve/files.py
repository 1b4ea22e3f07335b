"""Estimate from an image file's structure what decoding it would cost, and refuse decompression bombs.

A file of a few kilobytes can take seconds and gigabytes: each scan of a progressive JPEG costs 11 bytes and a pass over
all pixels, each chunk of a PNG may hold a megabyte of compressed text. Decoding has limits of time and memory as well;
these checks refuse such files early, with a specific message.
"""

import re
import struct

from PIL import Image

from resitta.serve.http_errors import Refused

SCANS = 32
"""Scans of a JPEG: libjpeg writes 6 (grey), 10 (YCbCr), 14 (RGB) or 18 (CMYK) into a progressive one."""
SEGMENTS, JUNK = 600, 256
"""Segments of a JPEG (32 MB of metadata need 500), and bytes outside of segments before its first scan."""
CHUNKS, CHUNK_BYTES = 256, 512
"""Chunks of a PNG: so many, and one more for each 512 bytes of the file."""
COMPRESSED_CHUNKS = 16
"""Compressed texts and colour profiles of a PNG; each may become a megabyte."""

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_SCAN, _END = 0xDA, 0xD9
_BARE = frozenset((0xC8, 0xD8, _END, *range(0xF0, 0xFE)))
"""Markers without a length, or unknown to decoders."""
_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd7\xff])")
"""A marker that may begin a segment: neither an escaped byte nor a restart of a scan."""
_CHUNK = struct.Struct(">I4s")
_PLAIN_CHUNKS = frozenset(b"IHDR PLTE tRNS gAMA cHRM sRGB pHYs sBIT bKGD tEXt IDAT IEND".split())
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}


def passes(raw: bytes) -> int:
    """Return how many passes over all pixels decoding takes: the number of scans of a JPEG, else 1.

    An upper bound: a scan begins with two bytes that compressed data cannot contain, but metadata can.

    >>> passes(PNG), passes(JPEG + b"\\xda\\x00\\x02" + b"\\xff\\xda\\x00\\x02" * 2)
    (1, 3)
    """
    if raw.startswith(PNG):
        _check_chunks(raw)
    if not raw.startswith(JPEG):
        return 1
    found = max(1, raw.count(b"\xff\xda"))
    _check_segments(raw, suspicious=found > SCANS)
    return found


def is_plain(raw: bytes) -> bool:
    """Return whether decoding costs no more than the pixels and bytes: one scan, no compressed metadata.

    >>> is_plain(b"\\x93NUMPY"), is_plain(JPEG + b"\\xda\\x00\\x02"), is_plain(b"RIFF")
    (True, True, False)
    """
    if raw.startswith(JPEG):
        return passes(raw) == 1
    if raw.startswith(PNG):
        return _check_chunks(raw) <= _PLAIN_CHUNKS
    return raw.startswith(b"\x93NUMPY")


def memory(picture: Image.Image, scans: int) -> int:
    """Return an upper bound of the bytes for decoding a picture and converting it to RGB.

    >>> memory(Image.new("RGB", (100, 10)), 1), memory(Image.new("L", (100, 10)), 6)
    (4000, 7000)
    """
    stored = _BYTES.get(picture.mode, 4)
    converted = 0 if picture.mode == "RGB" else 8 if picture.mode.startswith("I") else 4
    coefficients = 2 * len(picture.getbands()) if scans > 1 else 0
    canvas = 12 if picture.format == "WEBP" else 0  # its decoder's two canvases and their copy
    return picture.width * picture.height * (stored + converted + coefficients + canvas)


def _check_segments(raw: bytes, *, suspicious: bool) -> None:
    """Check the segments up to the first scan, or all scans and segments of a suspicious file.

    Segments are skipped by their length, as decoders do.
    """
    scans, segments, junk, place = 0, 0, 0, 2
    most = SCANS if suspicious else 0
    while scans <= most and segments <= SEGMENTS and (marker := _MARKER.search(raw, place)) is not None:
        kind = marker[1][0]
        if scans and kind == _END:
            break
        junk += 0 if scans else marker.end() - place - 2
        scans += kind == _SCAN
        segments += 1
        place = marker.end() + (0 if kind in _BARE else int.from_bytes(raw[marker.end() : marker.end() + 2]))
    junk += 0 if scans else len(raw) - place  # Pillow's parser reads it byte by byte
    if scans > SCANS:
        raise Refused(413, f"a JPEG may have {SCANS} scans, found more; save it as a baseline JPEG")
    if segments > SEGMENTS or junk > JUNK:
        limits = f"{SEGMENTS} segments and {JUNK} bytes between them before its image"
        raise Refused(413, f"a JPEG may have {limits}, found more; save the image again")


def _check_chunks(raw: bytes) -> set[bytes]:
    """Check the number of chunks and return their kinds."""
    chunks, compressed, place = 0, 0, len(PNG)
    kinds: set[bytes] = set()
    most = CHUNKS + len(raw) // CHUNK_BYTES
    while place + _CHUNK.size <= len(raw) and chunks <= most and compressed <= COMPRESSED_CHUNKS:
        length, kind = _CHUNK.unpack_from(raw, place)
        place += _CHUNK.size + length + 4
        chunks += 1
        compressed += kind in (b"zTXt", b"iTXt", b"iCCP")
        kinds.add(kind)
    if chunks > most or compressed > COMPRESSED_CHUNKS:
        sentence = f"a PNG of {len(raw):,} bytes may have {most} chunks, {COMPRESSED_CHUNKS} of them compressed texts"
        raise Refused(413, f"{sentence}, found more; save the image again")
    return kinds
