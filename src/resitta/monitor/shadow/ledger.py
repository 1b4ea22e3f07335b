"""The memory of compared images: what both networks predicted, and the label once it is known."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resitta.errors import BadState
from resitta.monitor.shadow.comparison import PairedAccuracy, paired_accuracy
from resitta.monitor.shadow.ids import Ids
from resitta.monitor.shadow.records import Agreement

ROOM = 8192
"""How many compared images are remembered: with a share of 5 %, labels may come 160,000 images late."""
COLUMNS = 6
"""The classes, confidences and entropies of both networks, each adapted first, then source."""
UNLABELLED = -1


class Ledger:
    """The last compared images by their ids, which rise, and totals over all of them.

    >>> ledger = Ledger()
    >>> ledger.add(np.array([3, 8]), np.array([[1, 0, 0.9, 0.5, 0.1, 0.7], [2, 2, 0.8, 0.6, 0.2, 0.6]]))
    >>> ledger.label(np.array([3, 5, 8]), np.array([0, 0, 2]))
    array([ True, False,  True])
    >>> ledger.agreement().disagreement, ledger.accuracy().source.value, ledger.accuracy().adapted.value
    (0.5, 1.0, 0.5)
    """

    def __init__(self) -> None:
        self.ids: Ids = np.empty(0, np.int64)
        self.values: NDArray[np.float32] = np.empty((0, COLUMNS), np.float32)
        self.labels: Ids = np.empty(0, np.int64)
        self.sums: NDArray[np.float64] = np.zeros(COLUMNS)
        """Images compared, those classified differently, confidences and entropies."""
        self.cells: Ids = np.zeros(4, np.int64)
        """Labelled images that neither, the source only, the adapted network only, or both predicted rightly."""

    def add(self, ids: Ids, values: NDArray[Any]) -> None:
        """Remember images, and forget the oldest; those with values that are not finite cannot be compared."""
        finite = np.isfinite(values).all(axis=1)
        ids, values = ids[finite], values[finite].astype(np.float32)
        self.sums += _sums(values)
        self.ids = np.concatenate([self.ids, ids])[-ROOM:]
        self.values = np.concatenate([self.values, values])[-ROOM:]
        self.labels = np.concatenate([self.labels, np.full(len(ids), UNLABELLED)])[-ROOM:]

    def label(self, ids: Ids, labels: Ids) -> NDArray[np.bool_]:
        """Note labels, of which the last counts if there are several of an image; return which ids are remembered."""
        places = np.searchsorted(self.ids, ids)
        known = places < len(self.ids)
        known[known] = self.ids[places[known]] == ids[known]
        touched = np.unique(places[known])
        self.cells -= self._cells(touched)
        self.labels[places[known]] = labels[known]
        self.cells += self._cells(touched)
        return known

    @property
    def oldest(self) -> int:
        """The id before which images are forgotten."""
        return int(self.ids[0]) if len(self.ids) == ROOM else 0

    def agreement(self, last: int | None = None) -> Agreement | None:
        """Compare without labels, on all images so far or on the last ones; None if there are none."""
        sums = self.sums if last is None else _sums(self.values[-last:])
        return Agreement(int(sums[0]), *(sums[1:] / sums[0]).tolist()) if sums[0] else None

    def accuracy(self, *, last: int | None = None, since: int = 0) -> PairedAccuracy | None:
        """Compare on all labelled images so far, or on the last ones with ids from `since` on; None without any."""
        cells = self.cells
        if last is not None:
            cells = self._cells(np.flatnonzero((self.labels != UNLABELLED) & (self.ids >= since))[-last:])
        neither, source_only, adapted_only, both = cells.tolist()
        return paired_accuracy(both, adapted_only, source_only, neither)

    def state(self) -> dict[str, Any]:
        """Return everything for `state_dict`, as copies."""
        return {name: torch.tensor(value) for name, value in vars(self).items()}

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Ledger":
        """Undo `state`; refuse what no ledger holds."""
        ledger, count = cls(), len(state["ids"])
        for name, own in vars(ledger).items():
            value = state[name].cpu().numpy().copy()
            remembered = name in ("ids", "values", "labels")
            shape = (count, *own.shape[1:]) if remembered else own.shape
            if value.shape != shape or value.dtype != own.dtype or not np.isfinite(value).all():
                raise BadState(f"{name} of the compared images must be finite {own.dtype} of shape {shape}")
            setattr(ledger, name, value)
        if count > ROOM or (np.diff(ledger.ids) <= 0).any() or (ledger.cells < 0).any() or (ledger.sums < 0).any():
            raise BadState(f"the compared images must be at most {ROOM}, in order of their ids, with counts from 0 on")
        return ledger

    def _cells(self, places: NDArray[Any]) -> Ids:
        places = places[self.labels[places] != UNLABELLED]
        adapted, source = (self.values[places, network] == self.labels[places] for network in (0, 1))
        return np.bincount(2 * adapted + source, minlength=4)


def _sums(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sums of a ledger over some of its rows."""
    differ = np.sum(values[:, 0] != values[:, 1])
    return np.array([len(values), differ, *values[:, 2:].sum(axis=0, dtype=np.float64)])
