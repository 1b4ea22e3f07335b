"""Batches of a size that varies: cuDNN must not search for the fastest kernels anew for each."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def varying_sizes() -> Iterator[None]:
    """Inside, cuDNN chooses its kernels by rules, whatever `torch.backends.cudnn.benchmark` says.

    Its search takes hundreds of times as long as a pass, and is repeated for each number of images.

    >>> with varying_sizes():
    ...     torch.backends.cudnn.benchmark
    False
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
