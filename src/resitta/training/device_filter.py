"""The filter of `resitta.training.temporal_filter` on a CUDA device: three kernels a batch, and no wait for it.

The first prepares the outputs of all samples. The second goes over the samples, a program for each temperature. The
third chooses the temperature of each sample and answers. This module imports Triton, so import it lazily.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from resitta.accel.temporal_scan import choose, prepare, scan
from resitta.training.temporal_filter import (
    BASE_SAMPLES,
    BLOCK,
    BLOCKS,
    EXPERTS,
    HANDICAP,
    HORIZON,
    LEAST_BLOCKS,
    LEAST_EVIDENCE,
    LONG,
    MEMORY,
    NULL_PRIOR,
    NULL_SAMPLES,
    RATE,
    STANDARD_ERRORS,
    TEMPERATURES,
    TINY,
    TOLERANCE,
    TRUST,
    TemporalFilter,
)

MOST_CLASSES = 1024
ROWS = 12
"""Of `shares`: the experts' beliefs, two base shares, two null shares, weighted outputs, outputs."""
SMALL = 32
"""Of `sums`: strength (8), log evidence (8), who speaks (8), base masses (2), null masses (2), weight; then blocks."""
COUNTS = ("samples", "temperature", "corrected", "relabelled", "skipped", "on")


@dataclass(frozen=True)
class DeviceFilter:
    """The state of a `TemporalFilter` on a device, in single precision. It is never written to."""

    shares: Tensor
    """M×12×K: see ROWS."""
    sums: Tensor
    """M×…: see SMALL."""
    last: Tensor
    """The logits of the last sample, less their maximum."""
    counts: Tensor
    """See COUNTS."""

    @classmethod
    def of(cls, state: TemporalFilter, device: torch.device) -> "DeviceFilter":
        """Move a filter to a device."""
        m, classes = len(TEMPERATURES), len(state.last)
        parts = state.beliefs, state.base, state.null, state.weighted[None], state.plain[None]
        shares = np.concatenate(parts).swapaxes(0, 1).astype(np.float32)
        sums = np.zeros((m, SMALL + 8 * BLOCKS), np.float32)
        for place, values in ((0, state.strength), (8, state.logs), (16, state.speaks)):
            sums[:, place : place + EXPERTS] = values.T
        sums[:, 24:26], sums[:, 26:28], sums[:, 28] = state.base_mass.T, state.null_mass, state.weight
        ring = sums[:, SMALL:].reshape(m, BLOCKS, 8)
        for back in range(len(state.blocks)):
            ring[:, (state.samples // BLOCK - 1 - back) % BLOCKS, :EXPERTS] = state.blocks[-1 - back].T
        counts = np.array([*(getattr(state, name) for name in COUNTS[:-1]), state.on], np.int64)
        arrays = shares.reshape(m, ROWS, classes), sums, state.last.astype(np.float32), counts
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays))

    def copy(self) -> "DeviceFilter":
        """Itself: it is never written to."""
        return self

    def to_host(self) -> TemporalFilter:
        """The filter on the host; it waits for the device."""
        shares, sums, last, counts = (each.cpu().numpy() for each in (self.shares, self.sums, self.last, self.counts))
        beliefs, base, null, weighted, plain = np.split(shares.swapaxes(0, 1), np.cumsum([EXPERTS, 2, 2, 1]))
        done = int(counts[0]) // BLOCK
        order = np.arange(done - min(done, BLOCKS), done) % BLOCKS
        ring = sums[:, SMALL:].reshape(len(sums), BLOCKS, 8)
        return TemporalFilter(
            beliefs=np.ascontiguousarray(beliefs),
            strength=sums[:, :EXPERTS].T.astype(float),
            base=base.astype(float),
            base_mass=sums[:, 24:26].T.astype(float),
            null=null.astype(float),
            null_mass=sums[0, 26:28].astype(float),
            blocks=ring[:, order, :EXPERTS].transpose(1, 2, 0).astype(float),
            speaks=sums[:, 16 : 16 + EXPERTS].T > 0,
            weighted=weighted[0].astype(float),
            weight=sums[:, 28].astype(float),
            plain=plain[0].astype(float),
            logs=sums[:, 8 : 8 + EXPERTS].T.astype(float),
            last=last.astype(float),
            **{name: int(count) for name, count in zip(COUNTS[:-1], counts, strict=False)},
        )

    def step(self, logits: Tensor, known: Tensor | None = None) -> tuple[Tensor, "DeviceFilter"]:
        """Return the corrected logits and the filter after them."""
        n, classes = logits.shape
        logits, width = logits.contiguous(), triton.next_power_of_2(max(classes, 16))
        new = DeviceFilter(*(torch.empty_like(each) for each in (self.shares, self.sums, self.last, self.counts)))
        m, most = len(TEMPERATURES), n // BLOCK + 1
        p = torch.empty((m, n, classes), dtype=torch.float32, device=logits.device)
        answers, speaking, foresight = torch.empty_like(p), p.new_empty((m, n)), p.new_empty((m, most))
        teaches, closed = (p.new_empty(n + 1, dtype=torch.int32) for _ in range(2))
        warps = 1 if width <= 64 else 4 if width <= 256 else 8
        mask, has_known = (logits, False) if known is None else (known.to(torch.int8), True)
        prepare[(n,)](
            *(logits, self.last, mask, p, teaches, new.last, classes),
            **{"has_known": has_known, "tolerance": TOLERANCE, "width": width},
        )
        parts = p, teaches, answers, speaking, closed, foresight
        scan[(m,)](
            *(self.shares, self.sums, self.counts, new.shares, new.sums, new.counts, constants(logits.device)),
            *(*parts, n, classes, most),
            **{**SCALARS, "width": width, "num_warps": warps},
        )
        out = torch.empty_like(logits)
        choose[(n,)](
            *(logits, out, self.counts, new.counts, new.sums, *parts[1:], n, classes, most),
            **{"stride": SMALL + 8 * BLOCKS, "width": width},
        )
        return out, new


SCALARS: dict[str, Any] = {
    **{"long": LONG, "experts": EXPERTS, "length": BLOCK, "blocks": BLOCKS, "least": LEAST_BLOCKS, "memory": MEMORY},
    **{"errors": STANDARD_ERRORS, "evidence": LEAST_EVIDENCE, "tiny": TINY, "null_prior": NULL_PRIOR},
    **{"base_short": float(BASE_SAMPLES[0, 0]), "base_long": float(BASE_SAMPLES[1, 0])},
    **{"null_short": float(NULL_SAMPLES[0]), "null_long": float(NULL_SAMPLES[1])},
    **{"small": SMALL, "rows": ROWS, "ring_rows": triton.next_power_of_2(BLOCKS)},
}
_constants: dict[torch.device, Tensor] = {}


def constants(device: torch.device) -> Tensor:
    """Trust, rate and handicap of each of eight experts, the last of which do not exist."""
    if device not in _constants:
        assert HORIZON[LONG] == 1
        rows = np.zeros((3, 8), np.float32)
        rows[:, :EXPERTS] = TRUST[:, 0], RATE[:, 0], HANDICAP[:, 0]
        _constants[device] = torch.from_numpy(rows).to(device)
    return _constants[device]
