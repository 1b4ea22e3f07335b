import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.checkpoint.format import open_seal, read, seal
from resitta.errors import BadState

PATH = Path("state.safetensors")
DOCUMENT = {"a": torch.arange(5.0), "b": {"c": (1, 2.5, None), "seal": '"seal":"0000000000000000-' + "0" * 64 + '"'}}


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(seal(DOCUMENT))
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x")["a"], DOCUMENT["a"])  # type: ignore[arg-type]


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(seal(DOCUMENT))
    found = read(tmp_path / "x")
    assert torch.equal(found["a"], torch.arange(5.0))
    assert found["b"] == DOCUMENT["b"]


def test_every_single_flipped_bit_is_noticed() -> None:
    data = seal({"a": torch.arange(3.0), "b": 1})
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(BadState):
                open_seal(data, PATH)
            data[position] ^= 1 << bit
    assert open_seal(data, PATH)["b"] == 1


def test_every_length_is_noticed() -> None:
    data = seal({"a": torch.arange(3.0), "b": 1})
    for length in range(len(data)):
        with pytest.raises(BadState):
            open_seal(data[:length], PATH)
    with pytest.raises(BadState, match=f"truncated or grown: {len(data) + 1} bytes instead of {len(data)}"):
        open_seal(data + b"\0", PATH)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.booleans())
def test_any_other_content_is_refused(content: bytes, with_header: bool) -> None:
    header = b'{"__metadata__":{"seal":"' + content
    data = len(header).to_bytes(8, "little") + header if with_header else content
    with pytest.raises(BadState):
        open_seal(data, PATH)


def test_swapped_and_overwritten_blocks_are_noticed() -> None:
    rng, data = random.Random(0), seal({"a": torch.arange(2000.0), "b": list(range(200))})
    for _ in range(200):
        spoiled = bytearray(data)
        size = rng.randrange(1, 500)
        one, other = (rng.randrange(len(data) - size) for _ in range(2))
        spoiled[one : one + size] = data[other : other + size] if rng.random() < 0.5 else rng.randbytes(size)
        if spoiled != data:
            with pytest.raises(BadState):
                open_seal(spoiled, PATH)


def test_each_kind_of_trouble_has_its_message(tmp_path: Path) -> None:
    good = bytes(seal({"a": torch.arange(300.0)}))
    damaged = bytearray(good)
    damaged[-1] ^= 1
    plain = safetensors.torch.save({"a": torch.zeros(2)}, {"format": "pt"})
    for content, message in (
        (b"", "is not a safetensors file"),
        (b"PK\x03\x04 some zip archive", "is not a safetensors file"),
        (good[:-100], f"is truncated or grown: {len(good) - 100} bytes instead of {len(good)}; use another copy"),
        (good[:20], "is cut off within its header"),
        (bytes(damaged), "is damaged: its bytes do not match their checksum; use another copy"),
        (plain, "has no seal of a state; name a whole file that adapter.save wrote"),
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(BadState, match=f"{tmp_path}/x {message}"):
            read(tmp_path / "x")


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadState, match=r"is a folder; name a file in it, or call resitta.recover\(model, folder\)"):
        read(tmp_path)
    for path in (tmp_path / "none", tmp_path / "none" / "x"):
        with pytest.raises(BadState, match="there is no state at .*none.*; check the path"):
            read(path)
    for path in (tmp_path / ("x" * 5000), Path("nul\0byte")):
        with pytest.raises(BadState, match="cannot be read .* check the path"):
            read(path)
