"""Each promise, broken on purpose: the suite has to say which it was and what to do."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.conformance import spread_network
from resitta.errors import NonConformant
from resitta.method import Learner, Method
from resitta.methods.tent import Tent, TentLearner
from resitta.training.network import Network, Trained


class Meter:
    """Keeps a number where nobody looks for it."""

    def __init__(self) -> None:
        self.total = 0


class BrokenLearner(TentLearner):
    """TENT with room for things to go wrong."""

    graph: Tensor

    def __init__(self, method: "Broken", network: Network) -> None:
        super().__init__(method, network)
        self.how = method.how
        self.given = (network,)
        self.kept: list[Any] = []
        self.mean: Tensor | None = None
        self.calls, self.average = 0, 0.0
        self.meter = Meter()
        self.register_buffer("graph", torch.zeros(()))
        self.register_buffer("late", None)
        self.own_generator = torch.Generator().manual_seed(0)

    def predict(self, images: Tensor) -> Tensor:
        if self.how == "learns while paused":
            with torch.no_grad():
                next(self.network.parameters()).add_(0.1)
        return super().predict(images)

    def step(self, images: Tensor) -> Tensor:
        logits = super().step(images)
        change = CHANGES.get(self.how)
        altered = None if change is None else change(self, logits, images)
        return altered if isinstance(altered, Tensor) else logits


@dataclass(frozen=True, kw_only=True)
class Broken(Tent):
    """Breaks one promise, named by `how`."""

    how: str = ""

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        return BrokenLearner(self, network)


Change = Callable[[BrokenLearner, Tensor, Tensor], Any]


def counting(learner: BrokenLearner, logits: Tensor, images: Tensor) -> None:
    """What would follow from the counter comes only after a thousand calls."""
    learner.calls += 1
    if learner.calls == 1000:
        torch.nn.init.ones_(next(learner.network.parameters()))


def averaging(learner: BrokenLearner, logits: Tensor, images: Tensor) -> Tensor:
    learner.average = 0.9 * learner.average + 0.1 * float(logits.mean())
    return logits - learner.average


def metering(learner: BrokenLearner, logits: Tensor, images: Tensor) -> Tensor:
    learner.meter.total += 1
    return logits + learner.meter.total


def into_the_model(learner: BrokenLearner, logits: Tensor, images: Tensor) -> None:
    with torch.no_grad():
        learner.given[0].model[0].weight.add_(1)  # type: ignore[index]


def into_the_statistics(learner: BrokenLearner, logits: Tensor, images: Tensor) -> None:
    learner.given[0].model[1].running_mean.add_(1)  # type: ignore[index]


def with_a_graph(learner: BrokenLearner, logits: Tensor, images: Tensor) -> None:
    total = sum((p.sum() for p in learner.network.parameters()), torch.zeros(()))
    learner.graph = 0 * learner.graph + total


CHANGES: dict[str, Change] = {
    "plain tensor": lambda learner, logits, _: setattr(learner, "mean", logits.mean(0)),
    "list of tensors": lambda learner, logits, _: learner.kept.append(logits.mean(0)),
    "list of arrays": lambda learner, _, images: learner.kept.append(images.numpy().copy()),
    "counter": counting,
    "float": averaging,
    "hidden number": metering,
    "late buffer": lambda learner, logits, _: setattr(learner, "late", logits.mean(0)),
    "own generator": lambda learner, logits, _: logits + torch.rand((), generator=learner.own_generator),
    "torch": lambda learner, logits, _: logits + torch.rand(()),
    "numpy": lambda learner, logits, _: logits + np.random.rand(),
    "python": lambda learner, logits, _: logits + random.random(),
    "unused draw": lambda learner, logits, _: nn.Linear(2, 2) and None,
    "writes into the model": into_the_model,
    "writes into the statistics": into_the_statistics,
    "graph": with_a_graph,
    "half": lambda learner, logits, _: logits.half(),
    "one row": lambda learner, logits, _: logits[:1],
}

LOST = "all_state_is_saved: BrokenLearner"
GLOBAL = "same_seed_gives_same_logits: the method drew from the global generator of"
MESSAGES = {
    "plain tensor": f"{LOST}.mean is a plain tensor: it changes while the learner runs and is not saved; "
    "register it with self.register_buffer('mean', ...)",
    "list of tensors": f"{LOST}.kept is a plain list of tensors: it changes while the learner runs and is not saved",
    "list of arrays": f"{LOST}.kept is a plain list: it changes while the learner runs and is not saved",
    "counter": f"{LOST}.calls is a plain int: it changes while the learner runs and is not saved; return it from",
    "float": f"{LOST}.average is a plain float: it changes while the learner runs and is not saved; return it from",
    "hidden number": "state_dict_continues: the loaded state continued differently; "
    "perhaps through BrokenLearner.meter",
    "late buffer": "all_state_is_saved: a fresh adapter cannot load the state: the state does not fit this",
    "own generator": f"{LOST}.own_generator is a random generator of its own: it changes while the learner runs and is",
    "torch": f"{GLOBAL} torch; draw from the generator that start() is given",
    "numpy": f"{GLOBAL} numpy; draw from the generator that start() is given",
    "python": f"{GLOBAL} Python; draw from the generator that start() is given",
    "unused draw": f"{GLOBAL} torch; draw from the generator that start() is given",
    "writes into the model": "model_of_the_caller_is_unchanged: the caller's model has changed: 0.weight;",
    "writes into the statistics": "model_of_the_caller_is_unchanged: the network that start() is given has changed: "
    "1.running_mean; change a fork of it, network.fork()",
    "learns while paused": "paused_changes_nothing: paused() did not stop learning",
    "graph": "memory_is_bounded: BrokenLearner.graph keeps a graph between steps; detach it",
    "half": "any_batch_size: logits changed device or type",
    "one row": "any_batch_size: 130 images gave logits (1, 5)",
}


@pytest.mark.parametrize("how", MESSAGES)
def test_a_broken_promise_is_named(how: str) -> None:
    with pytest.raises(NonConformant, match=re.escape(f"tent fails {MESSAGES[how]}")):
        resitta.check_method(Broken(how=how))


def test_the_broken_method_is_fine_when_nothing_is_broken() -> None:
    assert resitta.check_method(Broken())


def test_memory_that_grows_is_noticed_even_if_it_is_saved() -> None:
    class Hoarder(TentLearner):
        def __init__(self, network: Network) -> None:
            super().__init__(Tent(), network)
            self.kept: list[Tensor] = []

        def step(self, images: Tensor) -> Tensor:
            self.kept.append(images.clone())
            return super().step(images)

        def get_extra_state(self) -> dict[str, Any]:
            return {**super().get_extra_state(), "kept": list(self.kept)}

        def set_extra_state(self, state: dict[str, Any]) -> None:
            super().set_extra_state(state)
            self.kept = list(state["kept"])

    @dataclass(frozen=True, kw_only=True)
    class Hoarding(Method):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return Hoarder(network)

    with pytest.raises(NonConformant, match="memory_is_bounded: .* further bytes of tensors are alive"):
        resitta.check_method(Hoarding())


def test_a_state_that_no_file_can_hold_is_noticed() -> None:
    class Odd(TentLearner):
        def get_extra_state(self) -> dict[str, Any]:
            return {**super().get_extra_state(), "seen": {1, 2}}

    @dataclass(frozen=True, kw_only=True)
    class Unwritable(Method):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return Odd(Tent(), network)

    with pytest.raises(NonConformant, match=r"the state cannot be written to a file: .*seen is a builtins\.set"):
        resitta.check_method(Unwritable())


@pytest.mark.parametrize("trains", ["affine", "all"])
def test_a_method_that_trains_nothing_though_it_declares_to_is_noticed(trains: Trained) -> None:
    class Idle(TentLearner):
        def step(self, images: Tensor) -> Tensor:
            self.updates += 1
            return self.predict(images)

    @dataclass(frozen=True, kw_only=True)
    class Idling(Method):
        @property
        def trains(self) -> Trained:
            return trains

        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return Idle(Tent(), network)

    said = f"declared_parameters_move: trains='{trains}' is declared, but no parameter of Idle moved in 1,600 samples"
    with pytest.raises(NonConformant, match=rf"{said} \(the entropies of the source's predictions lie between 0\.0"):
        resitta.check_method(Idling())


def test_a_network_with_nothing_to_train_need_not_move() -> None:
    bare = spread_network()
    for layer in bare.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_parameter("weight", None)
            layer.register_parameter("bias", None)
    assert resitta.check_method("tent", model=bare)


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

    with pytest.raises(
        NonConformant, match="settings_are_frozen_keywords: its settings must be keyword-only; decorate"
    ):
        resitta.check_method(Loose())


def test_a_method_without_the_decorator_is_told_so() -> None:
    class Undecorated(Tent):
        more: float = 1.0

    with pytest.raises(NonConformant, match=r"decorate Undecorated with @dataclass\(frozen=True, kw_only=True\)"):
        resitta.check_method(Undecorated())


class Undeclared(TentLearner):
    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        self.learn(images)


class DeclaredInVain(TentLearner):
    learns_from_predictions = True


class SaysItDoesNotLearn(TentLearner):
    learns = False


class LearnsTwice(Undeclared):
    learns_from_predictions = True

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        self.updates += 1 + int(logits.numel())
        self.updates *= int(torch.is_grad_enabled()) + id(self) % 1009


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Undeclared, r"Undeclared writes learn_from\(\); declare learns_from_predictions = True"),
        (DeclaredInVain, r"DeclaredInVain declares learns_from_predictions = True, but does not write learn_from\(\)"),
        (SaysItDoesNotLearn, "SaysItDoesNotLearn learns; do not declare learns = False"),
        (LearnsTwice, r"learn_from\(\) with the logits of predict\(\) does not learn what a call learns"),
    ],
)
def test_what_a_learner_learns_from_is_declared(kind: type[TentLearner], message: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Declaring(Tent):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return kind(self, network)

    with pytest.raises(NonConformant, match=f"capabilities_are_declared: {message}"):
        resitta.check_method(Declaring())


def test_updates_that_are_not_counted_are_noticed() -> None:
    class Uncounted(TentLearner):
        def step(self, images: Tensor) -> Tensor:
            logits = super().step(images)
            self.updates = 0
            return logits

    @dataclass(frozen=True, kw_only=True)
    class Forgetful(Tent):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return Uncounted(self, network)

    with pytest.raises(NonConformant, match="parameters moved, but self.updates did not; add 1 per update"):
        resitta.check_method(Forgetful())
