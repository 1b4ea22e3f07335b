"""Branches: work that a CUDA graph does beside what comes after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Branch:
    """Work inside `with branch(x)` runs beside the work that follows, until `join`.

    Only recorded graphs branch. Work that is launched kernel by kernel seldom fills the queue of even one stream, and
    its memory would have to be guarded from being used again too early.

    >>> branch = Branch()
    >>> with branch(torch.ones(1)):
    ...     two = 1 + torch.ones(1)
    >>> branch.join()
    >>> two
    tensor([2.])
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.open = False

    @contextmanager
    def __call__(self, x: Tensor) -> Iterator[None]:
        """Begin after all that was done so far, on the device of x."""
        if not x.is_cuda:
            yield
            return
        if self.stream is None or self.stream.device != x.device:
            self.stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        self.open = torch.cuda.is_current_stream_capturing()
        if not self.open:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let what follows begin after the branch."""
        if self.open and self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.open = False
