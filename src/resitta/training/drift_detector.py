"""Domain shifts, found by a drift detector of another library, such as ADWIN, KSWIN or PageHinkley of river."""

import copy
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.errors import BadSetting, BadState
from resitta.training.domain_shift import DomainShiftDetector, image_statistics

SHARPNESS = 3
"""The image statistic that a detector gets: the logarithm of the curvature, which moved most at domain borders."""
HISTORY = 8192
"""How many values a detector has seen at most; beyond, it starts again with the newer half of them."""


@runtime_checkable
class DriftDetector(Protocol):
    """Anything that takes one number after another, and says whether their distribution has just changed."""

    @property
    def drift_detected(self) -> bool:
        """Whether the last value has shown a change."""

    def update(self, value: float) -> Any:
        """Take the next value."""


class SharpnessShift(nn.Module):
    """Feeds a drift detector with the sharpness of each image, and reports the changes that it detects.

    A copy of the detector is used, and a fresh one after each change. The state is the values since then, from which
    a detector is built again: this suits every detector, needs no pickle, and is exact if the detector depends on
    nothing else. One that draws random numbers needs a seed to continue a saved stream exactly.

    >>> class Jump:
    ...     last, drift_detected = float("-inf"), False
    ...     def update(self, value):
    ...         self.drift_detected, self.last = self.last - value > 1, value
    >>> shift = SharpnessShift(Jump())
    >>> sharp = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> shift(sharp), shift(torch.cat((sharp, 0.1 * sharp)))
    (None, 4)
    """

    def __init__(self, detector: DriftDetector) -> None:
        super().__init__()
        self.replay = CudaGraphs()
        self.first = detector
        self.values: NDArray[np.float64] = np.zeros(HISTORY)
        try:
            self._restart(np.empty(0))
        except Exception as error:
            found = f"a {type(detector).__name__} cannot be copied ({error})"
            raise BadSetting(f"{found}, but every stream needs a detector of its own; pass one that can") from error

    def forward(self, images: Tensor) -> int | None:
        """Take the next images of the stream, in [0, 1]; return the index of the last that showed a change, if any."""
        statistics = self.replay(image_statistics, images) if images.is_cuda else image_statistics(images)
        values: list[float] = statistics[:, SHARPNESS].tolist()
        changes = [index for index, value in enumerate(values) if math.isfinite(value) and self._shows_change(value)]
        return changes[-1] if changes else None

    def due(self, samples: int) -> bool:
        """Whether this many further images may show a change: any image may."""
        return True

    def _shows_change(self, value: float) -> bool:
        self.values[self.count] = value
        self.count += 1
        self.detector.update(value)
        changed = bool(self.detector.drift_detected)
        if changed:
            self._restart(self.values[:0])
        elif self.count == HISTORY:
            self._restart(self.values[HISTORY // 2 :].copy())
        return changed

    def _restart(self, values: NDArray[np.float64]) -> None:
        """Build a detector that has seen these values and no others."""
        self.detector = copy.deepcopy(self.first)
        self.count = len(values)
        self.values[: self.count] = values
        for value in values.tolist():
            self.detector.update(value)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the detector has seen, for `state_dict`."""
        return {"values": torch.tensor(self.values[: self.count])}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Let a new detector see it."""
        values = state["values"].cpu()
        if values.ndim != 1 or values.dtype != torch.float64 or len(values) >= HISTORY or not values.isfinite().all():
            found = f"{values.dtype} of shape {tuple(values.shape)}"
            raise BadState(f"the values of a drift detector are fewer than {HISTORY} finite float64, found {found}")
        self._restart(values.numpy())


def shift_of(asked: float | DriftDetector | None) -> DomainShiftDetector | SharpnessShift | None:
    """Return what finds domain shifts: our own detector with a bound, another's, or none.

    >>> type(shift_of(2.0)).__name__
    'DomainShiftDetector'
    """
    if asked is None:
        return None
    return SharpnessShift(asked) if isinstance(asked, DriftDetector) else DomainShiftDetector(asked)
