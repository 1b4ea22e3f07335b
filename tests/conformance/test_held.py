import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.conformance.held import held, lost


@dataclass
class Tally:
    sums: list[Tensor] = field(default_factory=list)


class Meter:
    """An object of no known kind."""

    def __init__(self) -> None:
        self.mean = 0.0


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("fleeting", torch.zeros(2), persistent=False)
        self.child = nn.Linear(1, 1)
        self.weight = nn.Parameter(torch.ones(2))
        self.mean: Tensor | None = None
        self.array = np.zeros(2)
        self.number: float = 0.0
        self.count = 0
        self.flag = False
        self.items: list[Any] = []
        self.table: dict[str, Any] = {}
        self.queue: deque[int] = deque([1, 2])
        self.classes: set[int] = set()
        self.tally = Tally()
        self.meter = Meter()
        self.hidden = [nn.Linear(1, 1, bias=False)]
        nn.init.zeros_(self.hidden[0].weight)
        self.generator = torch.Generator().manual_seed(0)
        self.rng = np.random.default_rng(0)
        self.python = random.Random(0)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1, momentum=0.9)
        self.replay = CudaGraphs()
        self.me = (self,)


def train(learner: Learner) -> None:
    learner.weight.sum().backward()  # type: ignore[no-untyped-call]
    learner.optimizer.step()


CHANGES: dict[str, tuple[Callable[[Learner], Any], str]] = {
    "mean": (lambda m: setattr(m, "mean", torch.ones(2)), "a plain tensor: .*register_buffer\\('mean', \\.\\.\\.\\)"),
    "array": (lambda m: m.array.fill(1), "a plain ndarray: .*; return it from get_extra_state"),
    "number": (lambda m: setattr(m, "number", 0.5), "a plain float: .*; return it from get_extra_state"),
    "count": (lambda m: setattr(m, "count", 3), "a plain int: .*; return it from get_extra_state"),
    "items": (lambda m: m.items.append(torch.ones(1)), "a plain list of tensors: .*; register its tensors as buffers"),
    "table": (lambda m: m.table.update(a=[1, (2, torch.ones(1))]), "a plain dict"),
    "queue": (lambda m: m.queue.popleft(), "a plain deque"),
    "classes": (lambda m: m.classes.add(3), "a plain set"),
    "tally": (lambda m: m.tally.sums.append(torch.ones(1)), "a plain Tally of tensors"),
    "hidden": (lambda m: nn.init.ones_(m.hidden[0].weight), "a plain list of tensors: .* torch.nn.ModuleList"),
    "generator": (lambda m: torch.rand((), generator=m.generator), "a random generator of its own: .*; draw from the"),
    "rng": (lambda m: m.rng.random(), "a random generator of its own"),
    "python": (lambda m: m.python.random(), "a random generator of its own"),
    "optimizer": (train, "torch's own SGD: .*; use one of resitta.training.optimizer"),
    "fleeting": (lambda m: m.get_buffer("fleeting").add_(1), "a buffer with persistent=False: .*; leave that out"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_and_is_not_saved_is_named(name: str) -> None:
    change, words = CHANGES[name]
    running, restored, begun = Learner(), Learner(), Learner()
    change(running)
    restored.load_state_dict(running.state_dict())
    (found,) = lost(running, restored, begun)
    assert found.owner == f"Learner.{name}"
    with pytest.raises(AssertionError, match=f"^Learner.{name} is {words}"):
        raise AssertionError(str(found))


def test_what_is_saved_or_stays_is_not_named() -> None:
    running, restored, begun = Learner(), Learner(), Learner()
    for module in (running, restored, begun):
        module.constant = torch.ones(3)
    running.get_buffer("kept").add_(1)
    nn.init.ones_(running.child.weight)
    restored.load_state_dict(running.state_dict())
    begun.child = running.child  # two fresh ones differ by chance
    restored.child.load_state_dict(running.child.state_dict())
    assert lost(running, restored, begun) == []


def test_what_a_module_leaves_out_of_its_copies_is_a_cache() -> None:
    running, restored, begun = Learner(), Learner(), Learner()
    for module in (restored, begun):
        module.child.load_state_dict(running.child.state_dict())
    running.replay._calls["learn"] += 1
    running.replay._places["learn"] = torch.ones(3)
    assert lost(running, restored, begun) == []


def test_flags_and_objects_of_any_class_are_looked_at_only_when_asked_for() -> None:
    running, restored, begun = Learner(), Learner(), Learner()
    for module in (restored, begun):
        module.child.load_state_dict(running.child.state_dict())
    running.meter.mean, running.flag = 0.5, True
    assert lost(running, restored, begun) == []
    found = lost(running, restored, begun, deep=True)
    assert {str(each).partition(":")[0] for each in found} == {
        "Learner.meter is a plain Meter",
        "Learner.flag is a plain bool",
    }


def test_a_function_in_the_place_of_nothing_is_no_state() -> None:
    running, restored, begun = Learner(), Learner(), Learner()
    restored.load_state_dict(running.state_dict())
    running.mean = torch.square  # type: ignore[assignment]
    assert lost(running, restored, begun) == []


def test_tensors_come_first() -> None:
    running, restored, begun = Learner(), Learner(), Learner()
    running.count, running.mean = 3, torch.ones(2)
    restored.load_state_dict(running.state_dict())
    assert [found.owner for found in lost(running, restored, begun)] == ["Learner.mean", "Learner.count"]


def test_modules_inside_of_each_other_end() -> None:
    learner = Learner()
    assert held(learner)[".child.weight"].owner == "Linear.weight"
