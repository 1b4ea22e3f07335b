"""Parallel streams inside a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of a device: libraries keep dozens of megabytes of workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class ParallelStreams:
    """Work inside `with streams(x)` runs in parallel with the work that follows, until `join`.

    Only inside recorded graphs: kernels launched one by one seldom fill even one stream, and their memory would have to
    be protected from early reuse.

    >>> streams = ParallelStreams()
    >>> with streams(torch.ones(1)):
    ...     two = 1 + torch.ones(1)
    >>> streams.join()
    >>> two
    tensor([2.])
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None

    @contextmanager
    def __call__(self, x: Tensor) -> Iterator[None]:
        """Begin after all that was done so far, on the device of x."""
        stream = side_stream(x.device) if x.is_cuda else None  # made before the first recording, not in it
        self.stream = stream if stream is not None and torch.cuda.is_current_stream_capturing() else None
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let what follows wait for the side stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.stream = None
