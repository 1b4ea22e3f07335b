from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import resitta
from resitta.checks import CHECKS, tiny_network
from resitta.components.network import Network
from resitta.errors import NonConformant
from resitta.method import Learner, Method
from resitta.methods.tent import Tent, TentLearner
from resitta.registry import list_methods


@pytest.mark.parametrize("name", list_methods())
def test_every_registered_method_conforms(name: str) -> None:
    method = resitta.create(name, views=2) if name == "cotta" else resitta.create(name)
    assert resitta.check_method(method) == tuple(check.__name__ for check in CHECKS)


def test_a_model_of_the_users_is_checked_and_left_alone() -> None:
    mine = tiny_network(channels=1, classes=3).train()
    resitta.check_method("resitta", model=mine, shape=(1, 16, 16))
    assert mine.training


def test_a_model_that_returns_more_than_logits_is_checked() -> None:
    class Answers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_network()

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"logits": self.net(x)}

    assert resitta.check_method("tent", model=Answers(), output="logits")


@dataclass(frozen=True, kw_only=True)
class Broken(Tent):
    """Breaks one promise, named by `how`."""

    how: str = ""

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        return BrokenLearner(self, network)


class BrokenLearner(TentLearner):
    def __init__(self, method: Broken, network: Network) -> None:
        super().__init__(method, network)
        self.how = method.how
        self.source = (network,)
        self.kept: list[Tensor] = []
        self.arrays: list[Any] = []
        self.total: Any = 0.0
        self.calls = 0

    def predict(self, images: Tensor) -> Tensor:
        if self.how == "learns while paused":
            with torch.no_grad():
                next(self.network.parameters()).add_(0.1)
        return super().predict(images)

    def step(self, images: Tensor) -> Tensor:
        self.calls += 1
        logits = super().step(images)
        if self.how == "keeps everything":
            self.kept.append(images.clone())
        if self.how == "keeps arrays":
            self.arrays.append(images.numpy().copy())
        if self.how == "keeps a graph":
            self.total = self.total + sum(p.sum() for p in self.network.parameters())
        if self.how == "global randomness":
            logits = logits + torch.rand(())
        if self.how == "forgets state":
            logits = logits + self.calls
        if self.how == "writes into the model":
            with torch.no_grad():
                next(self.source[0].model.parameters()).add_(1)
        if self.how == "half":
            logits = logits.half()
        if self.how == "one row":
            logits = logits[:1]
        return logits


@pytest.mark.parametrize(
    ("how", "promise"),
    [
        ("learns while paused", "paused_changes_nothing"),
        ("keeps everything", "memory_is_bounded"),
        ("keeps arrays", "memory_is_bounded"),
        ("keeps a graph", "memory_is_bounded"),
        ("global randomness", "reset_is_bit_exact|same_seed"),
        ("forgets state", "state_dict_continues"),
        ("writes into the model", "model_of_the_caller_is_unchanged"),
        ("half", "any_batch_size"),
        ("one row", "any_batch_size"),
    ],
)
def test_a_broken_promise_is_named(how: str, promise: str) -> None:
    with pytest.raises(NonConformant, match=promise):
        resitta.check_method(Broken(how=how))


def test_training_more_than_declared_is_noticed() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Greedy(Method):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return GreedyLearner(Tent(), network)

    class GreedyLearner(TentLearner):
        def __init__(self, method: Any, network: Network) -> None:
            super().__init__(method, network)
            self.network = network.fork("all")
            for parameter in self.network.parameters():
                torch.nn.init.ones_(parameter)

    with pytest.raises(NonConformant, match="only_declared_parameters_move: .* moved, but trains='affine'"):
        resitta.check_method(Greedy())


def test_settings_must_be_keyword_only() -> None:
    @dataclass(frozen=True)
    class Loose(Tent):
        more: float = 1.0

    with pytest.raises(NonConformant, match="settings_are_frozen_keywords"):
        resitta.check_method(Loose())
