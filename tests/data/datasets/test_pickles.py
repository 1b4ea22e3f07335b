import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from resitta.data.datasets.pickles import read_batch
from resitta.errors import BadData

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)


def python2_batch(labels: bytes = b"labels", dtype: bytes = b"u1") -> bytes:
    """Write a batch as Python 2 did for the public files: protocol 2, str keys, numpy.core."""
    raw = PIXELS.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        + b"(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\n(U\x02" + dtype + b"K\x00K\x01tR"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    key = b"U" + bytes([len(labels)]) + labels
    return b"\x80\x02}(" + key + b"](K\x07K\x00K\x02eU\x04data" + array + b"u."


class Evil:
    """Unpickled in the usual way, this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def batch_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "test_batch"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("labels", [b"labels", b"fine_labels"])
def test_public_format(tmp_path: Path, labels: bytes) -> None:
    content = python2_batch(labels)
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], PIXELS)  # the hand-made pickle is right
    pixels, found = read_batch(batch_file(tmp_path, content))
    assert np.array_equal(pixels, PIXELS)
    assert found == [7, 0, 2]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [3, 4])
def test_batches_written_by_python_3(tmp_path: Path, protocol: int, order: str) -> None:
    data = np.array(PIXELS, order="F" if order == "F" else "C")
    content = {"data": data, "fine_labels": [1, 2, 3], "coarse_labels": [0, 0, 0]}
    pixels, found = read_batch(batch_file(tmp_path, pickle.dumps(content, protocol)))
    assert np.array_equal(pixels, PIXELS)
    assert found == [1, 2, 3]


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "it ran"
    content = pickle.dumps({"data": Evil(proof), "labels": [0]})
    path = batch_file(tmp_path, content)
    with pytest.raises(BadData, match=r"test_batch is not a CIFAR batch \(it asks for .*, which no CIFAR file needs"):
        read_batch(path)
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists()  # it would have run


@pytest.mark.parametrize("name", [b"os\nsystem", b"builtins\neval", b"numpy\nload", b"numpy\nndarray.tofile"])
def test_no_other_name_can_be_reached(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(BadData, match="which no CIFAR file needs"):
        read_batch(batch_file(tmp_path, b"\x80\x02c" + name + b"\n."))


def test_the_stand_ins_cannot_be_changed_from_within(tmp_path: Path) -> None:
    change = b"cnumpy\nndarray\nN}U\x08__init__K\x00s\x86b."
    with pytest.raises(BadData, match="not a CIFAR batch"):
        read_batch(batch_file(tmp_path, b"\x80\x02" + change))
    test_public_format(tmp_path, b"labels")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        python2_batch()[:-100],
        python2_batch(labels=b"nothing"),
        python2_batch(dtype=b"f4"),
        python2_batch(dtype=b"O8"),
        pickle.dumps([1, 2]),
        pickle.dumps({"labels": [1], "data": [2]}),
    ],
    ids=["empty", "html", "cut", "no labels", "floats", "objects", "list", "no array"],
)
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadData, match=r"test_batch is not a CIFAR batch .* download it again"):
        read_batch(batch_file(tmp_path, content))


def bomb(levels: int = 60) -> bytes:
    """A tuple of itself twice, and again and again: small, but whoever looks at all of it never ends."""
    return b"\x80\x02)q\x00" + b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(levels)
    )


HOSTILE = {
    "a key that takes for ever to hash": bomb() + b"}h\x3cK\x00s.",
    "a name that takes for ever to print": bomb() + b"h\x3c\x93.",
    "labels that take for ever": b"\x80\x02}(U\x06labels" + bomb()[2:] + b"U\x04dataNu.",
    "nested lists": b"\x80\x02" + b"](" * 500_000 + b".",
    "nested tuples": b"\x80\x02)" + b"\x85" * 900_000 + b".",
    "too many instructions": b"\x80\x02]" + b"(K\x01e" * 20_000 + b".",
    "a place far away in memory": b"\x80\x02}r\xff\xff\xff\x7f.",
    "a string longer than the file": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.",
    "a number of many digits": b"I" + b"9" * 5_000_000 + b"\n.",
    "a long of many bytes": b"\x80\x02\x8b\x00\x00\x00\x40" + b"\xff" * 100 + b".",
    "a frame longer than memory": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent object": b"\x80\x02Pfile\n.",
    "an object made without a call": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "the stack is empty": b"\x80\x02e.",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_end_soon_and_take_little(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resitta.data.datasets.pickles.MOST_STEPS", 50_000)
    path = batch_file(tmp_path, content)
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match=r"test_batch is not a CIFAR batch .* download it again"):
            read_batch(path)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_a_file_beyond_any_batch_is_not_read(tmp_path: Path) -> None:
    path = batch_file(tmp_path, b"")
    with path.open("r+b") as file:
        file.truncate(2**30)  # of holes: it takes no room on the disk
    with pytest.raises(BadData, match="it has 1,073,741,824 bytes, at most 536,870,912 are read"):
        read_batch(path)


def test_ten_thousand_images_take_no_time(tmp_path: Path) -> None:
    batch = {
        "data": np.zeros((10_000, 3072), np.uint8),
        "labels": [3] * 10_000,
        "filenames": [f"{n}.png" for n in range(10_000)],
    }
    pixels, labels = read_batch(batch_file(tmp_path, pickle.dumps(batch, protocol=2 + 1)))
    assert pixels.shape == (10_000, 3072)
    assert len(labels) == 10_000
