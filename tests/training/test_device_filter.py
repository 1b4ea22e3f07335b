"""The filter on a device against the one on the host: on a GPU, or in Triton's interpreter, which is slow."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton comes with torch for CUDA")

from resitta.training.device_filter import DeviceFilter  # noqa: E402
from resitta.training.label_prior import TemporalPrior, device_filter  # noqa: E402
from resitta.training.temporal_filter import TemporalFilter  # noqa: E402

DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
SAMPLES = 4000 if GPU else 260
CLASSES = [2, 10, 100, 1000] if GPU else [3]
pytestmark = pytest.mark.slow
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")


def stream(samples: int, classes: int, length: int = 20, certainty: float = 1.0) -> Tensor:
    """Logits of classes that come in runs; some rows repeat, are not finite, or exclude a class."""
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (-(-samples // length),), generator=generator).repeat_interleave(length)[:samples]
    logits = torch.randn((samples, classes), generator=generator) + 3 * torch.nn.functional.one_hot(labels, classes)
    logits = 2 * certainty * logits
    logits[60:70] = logits[60]
    logits[90], logits[91, 0] = torch.nan, torch.inf
    logits[150:160, 1] = -torch.inf
    return logits


def agree(host: TemporalFilter, device: DeviceFilter) -> None:
    """Compare everything that is remembered."""
    found = vars(device.to_host())
    for name, expected in vars(host).items():
        if isinstance(expected, np.ndarray):
            assert found[name].shape == expected.shape, name
            np.testing.assert_allclose(found[name], expected, rtol=2e-3, atol=2e-3, err_msg=name)
        else:
            assert found[name] == expected, name


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("certainty", [0.4, 1.0] if GPU else [1.0])
def test_it_answers_and_remembers_what_the_filter_on_the_host_does(classes: int, certainty: float) -> None:
    logits, prior = stream(SAMPLES, classes, certainty=certainty), TemporalPrior()
    known = torch.arange(SAMPLES) % 37 != 5
    state = DeviceFilter.of(TemporalFilter.begin(classes), DEVICE)
    start, corrected = 0, 0
    for size in (1, 64, 7, 25) * SAMPLES:
        if start >= SAMPLES:
            break
        batch, learned = logits[start : start + size], known[start : start + size]
        start += size
        expected = prior(batch, learned)
        found, state = state.step(batch.to(DEVICE), learned.to(DEVICE))
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3, equal_nan=True)
        finite = batch.isfinite().any(1)
        top = expected.topk(2).values
        clear = finite & (top[:, 0] - top[:, 1] > 1e-3)
        assert torch.equal(found.cpu().argmax(1)[clear], expected.argmax(1)[clear])
        corrected += int((found.cpu() != batch)[finite].any(1).sum())
    host = prior._state()
    assert host is not None
    assert corrected > 50
    assert host.skipped > 10
    agree(host, state)


def test_a_state_moves_to_the_host_and_back() -> None:
    logits = stream(SAMPLES, 3).to(DEVICE)
    _, state = DeviceFilter.of(TemporalFilter.begin(3), DEVICE).step(logits)
    again = DeviceFilter.of(state.to_host(), DEVICE)
    for one, other in zip(state.step(logits[:30]), again.step(logits[:30]), strict=True):
        if isinstance(one, Tensor):
            assert isinstance(other, Tensor)
            torch.testing.assert_close(one, other, equal_nan=True)


def test_a_filter_is_never_written_to() -> None:
    state = DeviceFilter.of(TemporalFilter.begin(3), DEVICE)
    before = [each.clone() for each in vars(state).values()]
    state.step(stream(SAMPLES, 3)[:60].to(DEVICE))
    assert all(torch.equal(one, other) for one, other in zip(before, vars(state).values(), strict=True))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_other_types_keep_theirs(kind: torch.dtype) -> None:
    found, _ = DeviceFilter.of(TemporalFilter.begin(3), DEVICE).step(stream(SAMPLES, 3)[:30].to(DEVICE, kind))
    assert found.dtype == kind


@on_gpu
def test_the_prior_uses_it_and_goes_on_on_the_host() -> None:
    assert device_filter(DEVICE) is DeviceFilter
    options: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3, "equal_nan": True}
    logits = stream(1200, 10)
    host, prior = TemporalPrior(), TemporalPrior()
    for batch in torch.split(logits[:600], 64):
        torch.testing.assert_close(prior(batch.to(DEVICE)).cpu(), host(batch), **options)
    assert isinstance(prior._filter, DeviceFilter)
    assert prior.stats == host.stats
    torch.testing.assert_close(prior.peek(logits[:64].to(DEVICE)).cpu(), host.peek(logits[:64]), **options)
    other = TemporalPrior()
    other.set_extra_state(prior.get_extra_state())
    for batch in torch.split(logits[600:], 64):
        expected = host(batch)
        torch.testing.assert_close(prior(batch), expected, **options)
        torch.testing.assert_close(other(batch.to(DEVICE)).cpu(), expected, **options)


@on_gpu
def test_it_does_not_wait_for_the_device() -> None:
    prior, logits = TemporalPrior(), stream(1280, 10).to(DEVICE)
    for batch in torch.split(logits, 64):  # kernels are compiled
        prior(batch)
    torch.cuda.synchronize()
    with torch.cuda.device(DEVICE):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in torch.split(logits, 64):
                prior(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert prior.reported_on in (True, False)
