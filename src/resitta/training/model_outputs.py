"""What a model's answers so far have shown: which images it takes, and that it returns logits."""

import re

import torch
from torch import Tensor

from resitta.errors import BadOutput

ROWS = 4
"""How many rows must look like probabilities before they count as such: logits may do so once by chance."""
MISFITS = re.compile(
    r"expected input\[.*\] to have \d+ channels|shapes cannot be multiplied|size mismatch|must match the size of tensor"
    r"|must match except in dimension|is invalid for input of size|can't be greater than actual input size"
    r"|Output size is too small|too small for|smaller than kernel size|Expected \dD|expected \dD|[Ee]xpected 4-?D"
    r"|elements not \d+|(size|height|width|image).* doesn't match model",
)
"""How torch and timm say that the shape of a tensor does not go with a layer's weights."""


class Answers:
    """Shared by all networks on one architecture.

    >>> answers = Answers()
    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x27 and 12x5)")
    >>> answers.blames_images(error, torch.Size((2, 3, 3, 3))), answers.blames_images(RuntimeError("bug"), torch.Size())
    (True, False)
    """

    def __init__(self) -> None:
        self._last: tuple[torch.Size, bool] | None = None
        self._unsure = ROWS

    def __getstate__(self) -> dict[str, object]:
        """A copy finds out anew."""
        return vars(Answers())

    def take(self, images: Tensor, logits: Tensor, *, channels_last: bool) -> None:
        """Note that images in one layout were answered; refuse probabilities in the place of logits."""
        self._last = images.shape[1:], channels_last
        if self._unsure:
            self._check(logits.detach())

    def knows(self, shape: torch.Size, *, channels_last: bool) -> bool:
        """Whether the last images were of this shape and layout, and were answered: then neither is to blame."""
        return self._last == (shape[1:], channels_last)

    def blames_images(self, error: Exception, shape: torch.Size) -> bool:
        """Whether what the model raised is certainly due to the shape of the images."""
        unheard = self._last is None or self._last[0] != shape[1:]
        return unheard and MISFITS.search(str(error)) is not None

    def _check(self, logits: Tensor) -> None:
        """Look at the first rows, and no further once one of them is certainly not a probability distribution."""
        if logits.is_meta or (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        rows = logits.double()
        rounding = 1e-3 if torch.finfo(logits.dtype).eps < 1e-6 else 2e-2
        if not bool((rows >= 0).all() & ((rows.sum(dim=1) - 1).abs() < rounding).all()):
            self._unsure = 0 if bool(rows.isfinite().all()) else self._unsure
            return
        self._unsure -= len(torch.unique(rows, dim=0))
        if self._unsure <= 0:
            self._unsure = ROWS  # the next call is refused, too
            reason = "the model returns probabilities (every row is non-negative and sums to 1), not logits"
            raise BadOutput(f"{reason}; remove its final softmax, or take their logarithm with output=torch.log")
