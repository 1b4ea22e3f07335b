"""Saturation: a stream that loses its exposure is not learned from; healthy streams are, however bright or dark."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.monitor.guard.conftest import pictures
from torch import Tensor, nn

from resitta import adapt
from resitta.data.corrupted import evenly
from resitta.data.corruptions import CORRUPTIONS, corrupt
from resitta.data.datasets import open_images
from resitta.demo.digits import load_digits
from resitta.errors import BadState
from resitta.monitor.guard import Guard
from resitta.monitor.guard.exposure import USUAL, Exposure, clipped_shares

BOUND = Guard().max_clipped


def saturated(exposure: Exposure, images: Tensor, size: int = 64) -> tuple[Exposure, Tensor]:
    """Feed images in batches; return which were saturated."""
    found = []
    for batch in torch.split(images, size):
        exposure, some = exposure.add(batch, bound=BOUND)
        found.append(some)
    return exposure, torch.cat(found)


def test_shares_are_counted_at_both_ends() -> None:
    images = torch.full((3, 3, 4, 4), 0.5)
    images[1, :, :1], images[2, 0] = 0.0, 1.0
    torch.testing.assert_close(clipped_shares(images), torch.tensor([[0, 0], [0.25, 0], [0, 1 / 3]]))


@pytest.mark.parametrize("towards", [1.0, -1.0])
def test_a_stream_that_fades_is_found_before_it_is_flat(towards: float) -> None:
    exposure, found = saturated(Exposure(), pictures(640, 32))
    assert not found.any()
    light = torch.linspace(0, 1.2, 1280).view(-1, 1, 1, 1)
    images = (pictures(1280, 32, seed=1) + towards * light).clamp(0, 1)
    shares = clipped_shares(images).amax(dim=1)
    _, found = saturated(exposure, images)
    assert found[shares > 0.6].float().mean() > 0.95
    assert not found[:128].any()


@pytest.mark.parametrize("size", [1, 8, 64])
def test_single_white_images_are_no_fault_of_the_stream(size: int) -> None:
    images = pictures(640, 32)
    images[::8] = (images[::8] + 0.6).clamp(max=1)
    _, found = saturated(Exposure(), images, size)
    assert not found.any()


def test_what_lasts_becomes_usual() -> None:
    exposure, _ = saturated(Exposure(), pictures(640))
    bright = (pictures(1, seed=1) + 0.5).clamp(max=1)
    exposure, found = saturated(exposure, bright.expand(3 * USUAL, -1, -1, -1))
    assert found[64]
    assert not found[-1]


@pytest.mark.parametrize("paper", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 64])
def test_digits_on_black_or_white_are_known(paper: float, size: int) -> None:
    ink = load_digits().test[:200]
    images = (paper - ink).abs().expand(-1, 3, -1, -1)
    assert clipped_shares(images)[:, int(paper)].mean() > 0.5
    _, found = saturated(Exposure(), images, size)
    assert not found.any()


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_real_images_are_known_class_after_class(beds: Path, name: str, size: int) -> None:
    images = evenly(open_images(beds / "cifar10-test.zip"), 500)
    pixels = images.read(np.argsort(images.labels, kind="stable"))
    exposure, found = saturated(Exposure(), pixels.float() / 255, size)
    assert not found.any()
    assert not saturated(exposure, corrupt(pixels, name, 5, seed=0).float() / 255, size)[1].any()


def test_saturated_images_do_not_enter_the_memory(model: nn.Module) -> None:
    ordinary = pictures(320)
    bright = (pictures(320, seed=1) + 0.7).clamp(max=1)
    for guard, clock in ((Guard(), 320), (Guard(max_clipped=1.0), 640)):
        adapter = adapt(model, "resitta", guard=guard)
        for batch in torch.split(torch.cat([ordinary, bright]), 64):
            adapter(batch)
        memory = adapter.learner.memory()
        assert memory is not None
        assert memory.clock == clock


def test_a_failed_step_leaves_no_trace(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapt(model, "resitta", guard=True)
    adapter(pictures(8))
    before = adapter.state_dict()["_extra_state"]["guard"]["case"]["exposure"]
    with monkeypatch.context() as broken:
        broken.setattr(type(adapter.learner.memory()), "add", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adapter(pictures(8, seed=1))
    after = adapter.state_dict()["_extra_state"]["guard"]["case"]["exposure"]
    assert before["samples"] == after["samples"] == 8
    assert torch.equal(before["level"], after["level"])


def test_it_goes_on_from_a_state_and_from_one_of_earlier_versions(model: nn.Module) -> None:
    adapter, other, third = (adapt(model, "resitta", guard=True) for _ in range(3))
    adapter(pictures(64))
    state = adapter.state_dict()
    other.load_state_dict(state)
    torch.testing.assert_close(other.state_dict()["_extra_state"]["guard"], state["_extra_state"]["guard"])
    older = copy.deepcopy(state)
    del older["_extra_state"]["guard"]["case"]["exposure"]
    third.load_state_dict(older)
    assert third.state_dict()["_extra_state"]["guard"]["case"]["exposure"]["samples"] == 0
    assert torch.equal(third(pictures(64)), other(pictures(64)))


@pytest.mark.parametrize(
    "wrong", [{"level": torch.tensor([0.0, 1.5])}, {"usual": torch.zeros(3)}, {"samples": -1}, {"samples": True}]
)
def test_a_state_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadState):
        Exposure.of({**Exposure().state(), **wrong})
