"""Frames of a video file, a stream or a camera as batches of images, with PyAV or OpenCV (extra `video`)."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
import torch
from torch import Tensor

from resitta.errors import BadData, BadSetting, require
from resitta.inputs.convert import Adapted, Reading, Resize, Size, images
from resitta.inputs.sources import Array

Backend = Literal["pyav", "opencv"]
MISSES = 10
"""After how many reads without a frame a video of OpenCV ends; at a damaged frame it returns none as well."""


def video(
    source: str | os.PathLike[str] | int,
    *,
    size: Size = None,
    resize: Resize = "crop",
    batch: int = 1,
    every: int = 1,
    backend: Backend | None = None,
    to: Adapted | torch.device | str | None = None,
) -> "Video":
    """Read a video file, a stream or a camera: an iterator over batches of frames, N×3×H×W, RGB.

    Args:
        source: a path, a URL, or the number of a camera.
        size: as in `resitta.images`, like `resize` and `to`.
        batch: frames per batch; the last batch may hold fewer.
        every: use one frame in so many.
        backend: "pyav" or "opencv"; by default OpenCV for cameras and PyAV for everything else, if both are installed.

    Raises:
        BadData: the source cannot be opened.
        MissingExtra: neither package is installed.

    >>> with video("street.mp4", size=224, every=5) as frames:  # doctest: +SKIP
    ...     for images in frames:
    ...         logits = adapter(images)
    """
    Reading(size=size, resize=resize)  # refuses them before anything is opened
    convert = partial(images, size=size, resize=resize, layout="HWC", to=to)
    return Video(source, convert, batch=batch, every=every, backend=backend)


class Video:
    """What `resitta.video` returns: an iterator that closes its device at the end, at an error, or with `with`."""

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        convert: Callable[..., Tensor],
        *,
        batch: int,
        every: int,
        backend: Backend | None,
    ) -> None:
        for name, count in (("batch", batch), ("every", every)):
            if type(count) is not int or count < 1:
                raise BadSetting(f"{name} must be a whole number from 1 on, found {count!r}")
        self._reader = _open(source, backend)
        self._batches = self._read(convert, batch, every)

    @property
    def fps(self) -> float:
        """Frames per second as the source declares them, before `every`; 0 if it does not."""
        return self._reader.fps

    @property
    def skipped(self) -> int:
        """How many damaged frames (PyAV: packets) were left out so far."""
        return self._reader.skipped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensor:
        return next(self._batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file or camera; the iterator ends."""
        self._batches.close()
        self._reader.close()

    def _read(self, convert: Callable[..., Tensor], batch: int, every: int) -> Generator[Tensor, None, None]:
        decoded = map(self._reader.array, islice(self._reader, 0, None, every))
        frames = (frame for frame in decoded if frame is not None)
        try:
            while group := list(islice(frames, batch)):
                yield convert(group, bgr=self._reader.bgr)
        finally:
            self._reader.close()


class Reader(Protocol):
    """One of the libraries; what it iterates over costs little until `array` is asked for."""

    bgr: bool
    fps: float
    skipped: int

    def __iter__(self) -> Iterator[Any]: ...

    def array(self, frame: Any) -> Array | None:
        """The pixels of a frame, H×W×3; None and a count if it is damaged."""

    def close(self) -> None:
        """Release the source; more than once does no harm."""


class PyAV:
    """Frames decoded with PyAV, turned as the file says."""

    bgr = False

    def __init__(self, source: str) -> None:
        self._av = require("av", "video")
        self.skipped = 0
        try:
            self._container = self._av.open(source)
        except (self._av.error.FFmpegError, OSError) as error:
            raise _unopened(source, error) from error
        if not self._container.streams.video:
            self._container.close()
            raise _unopened(source, "it has no pictures")
        self._stream = self._container.streams.video[0]
        self.fps = float(self._stream.average_rate or 0)

    def __iter__(self) -> Iterator[Any]:
        with suppress(self._av.error.FFmpegError):  # a file that was cut, or a stream that was lost, ends here
            for packet in self._container.demux(self._stream):
                try:
                    frames = packet.decode()
                except self._av.error.FFmpegError:
                    self.skipped += 1
                    continue
                intact = [frame for frame in frames if not frame.is_corrupt]
                self.skipped += len(frames) - len(intact)
                yield from intact

    def array(self, frame: Any) -> Array:
        """The pixels of a frame, H×W×3."""
        return np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)

    def close(self) -> None:
        """Release the source; more than once does no harm."""
        self._container.close()


class OpenCV:
    """Frames read with OpenCV, from a camera by its number as well."""

    bgr = True

    def __init__(self, source: str | int) -> None:
        cv2 = require("cv2", "video")
        self.skipped = 0
        self._capture = cv2.VideoCapture(source)
        if not self._capture.isOpened():
            raise _unopened(source, "OpenCV does not say why")
        self.fps = float(self._capture.get(cv2.CAP_PROP_FPS))

    def __iter__(self) -> Iterator[Any]:
        missed = 0
        while missed < MISSES:
            if self._capture.grab():
                self.skipped, missed = self.skipped + missed, 0
                yield self._capture
            else:
                missed += 1

    def array(self, frame: Any) -> Array | None:
        """The pixels of the frame that was grabbed last, H×W×3; None and a count if it is damaged."""
        found, pixels = frame.retrieve()
        self.skipped += not found
        return pixels if found else None

    def close(self) -> None:
        """Release the source; more than once does no harm."""
        self._capture.release()


def _open(source: str | os.PathLike[str] | int, backend: Backend | None) -> Reader:
    if backend not in (None, *get_args(Backend)):
        raise BadSetting(f"backend must be 'pyav' or 'opencv', found {backend!r}")
    if isinstance(source, bool) or not isinstance(source, str | os.PathLike | int):
        raise BadSetting(f"source must be a path, a URL or the number of a camera, found {source!r}")
    if isinstance(source, int):
        if backend == "pyav":
            raise BadSetting(f"PyAV knows no camera by its number, found {source}; pass backend='opencv'")
        return OpenCV(source)
    only_opencv = find_spec("av") is None and find_spec("cv2") is not None
    opened = OpenCV if backend == "opencv" or (backend is None and only_opencv) else PyAV
    return opened(os.fspath(source))


def _unopened(source: str | int, reason: object) -> BadData:
    what = f"camera {source}" if isinstance(source, int) else str(source)
    return BadData(f"{what} cannot be opened as a video ({reason}); check that it exists and that nobody else uses it")
