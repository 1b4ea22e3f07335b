"""Weights cast once give the very results of weights cast in every pass, and are never stale."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta import Adapter, adapt
from resitta.accel.bf16_weights import Bf16Weights

IMAGES = torch.rand(6, 64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def casts_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast here as on a CUDA device."""
    monkeypatch.setattr("resitta.training.network.CASTS_ON", {"cuda", "cpu"})


def casts_of(adapter: Adapter) -> Bf16Weights:
    """All networks of an adapter share one."""
    found = {id(module): module for module in adapter.modules() if isinstance(module, Bf16Weights)}
    (casts,) = found.values()
    return casts


@contextmanager
def not_at_all(self: Bf16Weights, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Let autocast do it."""
    yield


@pytest.mark.parametrize("method", ["resitta", "rotta", "tent", "cotta", "source"])
def test_a_stream_is_answered_as_by_autocast_alone(
    model: nn.Module, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"views": 2} if method == "cotta" else {}
    ours = adapt(model, method, precision="bf16", **settings)
    with_casts = [ours(batch) for batch in IMAGES]
    monkeypatch.setattr(Bf16Weights, "of", not_at_all)
    theirs = adapt(model, method, precision="bf16", **settings)
    assert all(torch.equal(a, theirs(batch)) for a, batch in zip(with_casts, IMAGES, strict=True))


def test_teacher_and_student_share_one_copy_of_every_frozen_weight(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", precision="bf16", background=True)
    adapter(IMAGES[0])
    adapter.sync()
    assert adapter.stats.updates == 1
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    copies = list(casts_of(adapter)._copies.values())
    assert sorted(c.numel() for c in copies) == sorted(w.numel() for w in weights)
    assert all(c.dtype == torch.bfloat16 for c in copies)


def test_exact_mode_keeps_no_copies(model: nn.Module) -> None:
    adapter = adapt(model, "resitta")
    adapter(IMAGES[0])
    assert len(casts_of(adapter)) == 0


def test_weights_that_are_trained_are_never_stale(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", precision="bf16", train="all", lr=0.05, nu_m=0.5)
    for batch in IMAGES:
        adapter(batch)
    with adapter.paused(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        images = IMAGES[0].contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(adapter(IMAGES[0]), adapter.export()(images).float(), rtol=0.05, atol=0.05)
        assert (adapter(IMAGES[0]) - model(images).float()).abs().max() > 0.2, "too little was learned to tell"


class Standardized(nn.Conv2d):
    """Computes its weight anew in every pass."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, weight=self.weight - self.weight.mean())


def test_a_weight_that_is_computed_is_left_alone() -> None:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    adapter = adapt(nn.Sequential(Standardized(3, 4, 3), nn.BatchNorm2d(4), *head), "resitta", precision="bf16")
    for batch in IMAGES:
        adapter(batch)
    assert len(casts_of(adapter)) == 1, "that of the linear layer"


def test_moving_forgets_and_copying_leaves_behind() -> None:
    weight, casts = torch.ones(1, 2), Bf16Weights()
    with casts.of([weight]):
        F.linear(torch.ones(1, 2, dtype=torch.bfloat16), weight)
    assert len(casts) == 1
    assert len(copy.deepcopy(casts)) == len(pickle.loads(pickle.dumps(casts))) == 0
    assert not casts.state_dict()
    assert len(casts.to(torch.float64)) == 0


def test_an_adapter_that_was_converted_casts_anew(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", precision="bf16")
    for dtype, copies in ((torch.float32, 3), (torch.float64, 0), (torch.float32, 3)):
        adapter.to(dtype)
        assert adapter(IMAGES[0].to(dtype)).isfinite().all()
        assert len(casts_of(adapter)) == copies
