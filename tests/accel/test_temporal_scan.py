"""The first kernel alone; `tests/training/test_device_filter.py` compares all of them with the filter on the host."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton comes with torch for CUDA")

from resitta.accel.temporal_scan import prepare
from resitta.training.temporal_filter import TOLERANCE, TemporalFilter, outputs_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.slow
def test_outputs_are_prepared_as_on_the_host() -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    rows[2], rows[4, 1] = rows[1] + 3, torch.nan
    state = TemporalFilter.begin(5)
    p, last = torch.empty(3, 6, 5, device=DEVICE), torch.from_numpy(state.last).float().to(DEVICE)
    flags, fresh, logits = torch.empty(6, dtype=torch.int32, device=DEVICE), torch.empty_like(last), rows.to(DEVICE)
    known = torch.tensor([1, 1, 1, 0, 1, 1], dtype=torch.int8, device=DEVICE)
    prepare[(6,)](logits, last, known, p, flags, fresh, 5, has_known=True, tolerance=TOLERANCE, width=16)
    assert flags.tolist() == [2, 2, 1, 1, 0, 2]
    usable = [0, 1, 2, 3, 5]
    expected = outputs_of(rows[usable].double().numpy())
    np.testing.assert_allclose(p[:, usable].cpu().numpy().swapaxes(0, 1), expected, rtol=1e-5, atol=1e-7)
    state.are_new(rows[usable].double().numpy())
    np.testing.assert_allclose(fresh.cpu().numpy(), state.last, rtol=1e-5)
