import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from resitta.errors import BadData
from resitta.streams.datasets.pickles import read_batch

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
