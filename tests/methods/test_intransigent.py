"""A teacher that keeps the source's parameters, under everything that otherwise deploys the teacher."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.checkpoint.tree import same
from resitta.training.network import Network
from resitta.training.self_training import SelfTraining

Stream = Callable[[int], Tensor]
BRISK: dict[str, Any] = {"lr": 0.01, "update_every": 16, "intransigent": True}
both = pytest.mark.parametrize("method", ["resitta", "rotta"])


def networks(adapter: resitta.Adapter) -> SelfTraining:
    return next(module for module in adapter.learner.modules() if isinstance(module, SelfTraining))


def parameters(network: Network) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in network.parameters()]


@both
def test_it_conforms(method: str) -> None:
    resitta.check_method(resitta.method.create(method, intransigent=True))


@both
def test_only_statistics_of_the_teacher_move(method: str, precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, method, **BRISK)
    teacher, student = networks(adapter).teacher, networks(adapter).student
    source, statistics = parameters(teacher), [buffer.clone() for buffer in teacher.buffers()]
    adapter(stream(100))
    assert same(parameters(teacher), source)
    assert not same(parameters(student), source)
    assert not same(list(teacher.buffers()), statistics)


@both
def test_its_export_is_the_student(method: str, precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, method, **BRISK)
    adapter(stream(100))
    with adapter.paused():
        expected = adapter(stream(20))
    torch.testing.assert_close(adapter.export()(stream(20)), expected)
    torch.testing.assert_close(networks(adapter).student(stream(20)), expected)
    assert not torch.allclose(networks(adapter).teacher(stream(20)), expected, atol=1e-4)


@both
def test_in_the_background_all_is_as_without(method: str, model: nn.Module, stream: Stream) -> None:
    beside, plain = adapt(model, method, background=True, **BRISK), adapt(model, method, **BRISK)
    for batch in torch.split(stream(120).float(), 24):
        assert torch.equal(beside(batch), plain(batch))
        beside.sync()
    assert same(beside.state_dict(), plain.state_dict())
    assert plain.stats.updates == 7


@both
def test_its_state_is_saved(method: str, model: nn.Module, stream: Stream, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    images, adapter = stream(120).float(), adapt(model, method, **BRISK)
    adapter(images[:60])
    adapter.save(tmp_path / "state")
    other = resitta.load(model, tmp_path / "state")
    for batch in torch.split(images[60:], 20):
        assert torch.equal(other(batch), adapter(batch))


@both
def test_a_guard_takes_back_what_the_student_learned(method: str, model: nn.Module) -> None:
    settings: dict[str, Any] = {**BRISK, "lr": 3.0}
    guarded, plain = adapt(model, method, guard=True, **settings), adapt(model, method, **settings)
    fired: list[object] = []
    guarded.listen(lambda event: fired.append(event) if isinstance(event, resitta.events.GuardFired) else None)
    for number in range(30):
        images = torch.rand(32, 3, 10, 10, generator=torch.Generator().manual_seed(number))
        guarded(images)
        plain(images)
    assert fired
    assert guarded.stats.updates < plain.stats.updates
    assert not same(parameters(networks(guarded).student), parameters(networks(plain).student))


@both
def test_models_that_insist_on_the_usual_layout(method: str, stream: Stream) -> None:
    class Insists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 64, 5)

        def forward(self, x: Tensor) -> Tensor:
            maps = self.norm(self.conv(x))
            logits: Tensor = self.head(maps.view(len(x), -1))
            return logits

    adapter = adapt(Insists().eval(), method, **BRISK)
    adapter(stream(40).float())
    assert adapter.stats.updates == 2


@both
def test_its_drift_is_that_of_the_student(method: str, precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, method, **BRISK)
    adapter(stream(64))
    before = copy.deepcopy(adapter.stats.drift)
    with torch.no_grad():
        for name, tensor in networks(adapter).teacher.named_buffers():
            if name.endswith("running_mean"):
                tensor.add_(1)
    assert adapter.stats.drift == before
