"""Videos are read frame by frame with either library, also damaged ones, and closed."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tools import write_video
from torch import nn

import resitta
from resitta.errors import BadData, BadImages, BadSetting, MissingExtra
from resitta.inputs import video as module

av = pytest.importorskip("av")
cv2 = pytest.importorskip("cv2")
BOTH = pytest.mark.parametrize("backend", ["pyav", "opencv"])


def colours(count: int) -> "np.ndarray[Any, Any]":
    """Frames of 64×96 pixels, red on the left and blue on the right, that brighten."""
    frames = np.zeros((count, 64, 96, 3), np.uint8)
    frames[:, :, :48, 0] = frames[:, :, 48:, 2] = 100 + 5 * np.arange(count)[:, None, None]
    return frames


@pytest.fixture
def film(tmp_path: Path) -> Path:
    write_video(tmp_path / "film.mp4", colours(20))
    return tmp_path / "film.mp4"


@BOTH
def test_frames_come_in_batches_and_in_rgb(film: Path, backend: Any) -> None:
    with resitta.video(film, batch=6, every=2, backend=backend) as frames:
        assert frames.fps == 10
        batches = list(frames)
    assert [tuple(batch.shape) for batch in batches] == [(6, 3, 64, 96), (4, 3, 64, 96)]
    expected = resitta.images(colours(20)[::2])
    assert (torch.cat(batches) - expected).abs().mean() < 0.02
    assert frames.skipped == 0


def test_both_libraries_agree(film: Path) -> None:
    one, other = (torch.cat(list(resitta.video(film, size=32, backend=name))) for name in ("pyav", "opencv"))
    assert one.shape == (20, 3, 32, 32)
    assert (one - other).abs().max() < 0.05


@BOTH
def test_an_adapter_takes_the_frames(film: Path, model: nn.Module, backend: Any) -> None:
    adapter = resitta.adapt(model, "resitta", normalized=((0.5,) * 3, (0.25,) * 3))
    for images in resitta.video(film, size=10, batch=5, backend=backend, to=adapter):
        assert images.min() < -1  # normalised
        adapter(images)
    assert adapter.stats.samples == 20


@BOTH
def test_damaged_frames_are_left_out_and_counted(film: Path, backend: Any) -> None:
    with av.open(film) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(container.streams.video[0])]
    data = bytearray(film.read_bytes())
    for place, length in places[5:7]:
        data[place : place + length] = bytes(length)
    film.write_bytes(data)
    with resitta.video(film, backend=backend) as frames:
        assert len(list(frames)) == 18
        assert frames.skipped == 2


def test_what_is_closed_ends(film: Path) -> None:
    frames = resitta.video(film, batch=3)
    assert next(frames).shape[0] == 3
    frames.close()
    frames.close()
    assert list(frames) == []
    resitta.video(film).close()


class Camera:
    """An OpenCV camera that returns no frame now and then, and at last none at all."""

    released = 0

    def __init__(self, source: int) -> None:
        self.answers = [True, False, False, True, True]

    def isOpened(self) -> bool:  # noqa: N802
        return True

    def get(self, name: int) -> float:
        return 0.0

    def grab(self) -> bool:
        return self.answers.pop(0) if self.answers else False

    def retrieve(self) -> tuple[bool, Any]:
        return (False, None) if not self.answers else (True, np.full((4, 5, 3), (255, 0, 0), np.uint8))

    def release(self) -> None:
        type(self).released += 1


def test_a_camera_is_read_until_it_is_gone_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    before = Camera.released
    frames = resitta.video(0)
    batches = list(frames)
    assert len(batches) == 2
    assert batches[0][0, :, 0, 0].tolist() == [0, 0, 1]  # blue
    assert frames.skipped == 3
    assert Camera.released > before


def test_an_error_releases_the_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    monkeypatch.setattr(Camera, "retrieve", lambda self: (True, np.zeros((len(self.answers) + 1, 5, 3), np.uint8)))
    before = Camera.released
    with pytest.raises(BadImages, match="must have one size"):
        list(resitta.video(0, batch=3))
    assert Camera.released > before


def test_pictures_are_turned_as_the_file_says() -> None:
    class Frame:
        rotation = 90

        def to_ndarray(self, format: str) -> Any:
            return np.arange(6).reshape(1, 2, 3)

    assert module.PyAV.array(None, Frame()).tolist() == [[[3, 4, 5]], [[0, 1, 2]]]  # type: ignore[arg-type]


@BOTH
def test_what_cannot_be_opened_is_named(tmp_path: Path, backend: Any) -> None:
    (tmp_path / "notes.mp4").write_text("no video")
    for name in ("none.mp4", "notes.mp4"):
        with pytest.raises(BadData, match=f"{name} cannot be opened as a video"):
            resitta.video(tmp_path / name, backend=backend)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be a whole number from 1 on, found 0"),
        ({"every": 0.5}, "every must be a whole number from 1 on, found 0.5"),
        ({"backend": "ffmpeg"}, "backend must be 'pyav' or 'opencv', found 'ffmpeg'"),
        ({"source": 1.5}, "source must be a path, a URL or the number of a camera, found 1.5"),
        ({"source": 0, "backend": "pyav"}, "PyAV knows no camera by its number, found 0"),
        ({"size": 0}, "size must be a side"),
    ],
)
def test_bad_options_are_refused(film: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        resitta.video(**{"source": film, **options})


def test_the_extra_is_named_and_the_other_library_is_used(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"av is not installed; run: pip install .*\[video\]"):
        resitta.video(film, backend="pyav")
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "av" else name)
    assert len(list(resitta.video(film))) == 20
