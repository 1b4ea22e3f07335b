import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import small_network, stream
from torch import Tensor, nn

from resitta import adapt
from resitta.errors import UnsuitableModel
from resitta.method import Learner, Method
from resitta.monitor.guard import Guard
from resitta.monitor.guard.guard_state import GuardState
from resitta.training.network import Network
from resitta.training.optimizer import SGD, Adam, Optimizer


def weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(3, 2), (4,)]]


def loss(parameters: list[nn.Parameter]) -> Tensor:
    return torch.stack([(parameter**2 + parameter.sin()).sum() for parameter in parameters]).sum()


def by_hand(value: float, gradients: list[float], lr: float) -> float:
    """Adam's equations for one number."""
    first = second = 0.0
    for step, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        value -= lr * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
    return value


def test_steps_follow_the_equations() -> None:
    weight, gradients = nn.Parameter(torch.ones(1, dtype=torch.float64)), [3.0, -1.0, 0.5, 2.0]
    optimizer = Adam([weight], lr=0.1)
    for gradient in gradients:
        optimizer.descend((weight * gradient).sum())
    torch.testing.assert_close(weight.item(), by_hand(1.0, gradients, lr=0.1))


def test_moments_have_the_precision_of_their_parameters_whatever_the_optimizer_was_converted_to() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(1e-6 * loss(parameters))
    before = copy.deepcopy(optimizer.get_extra_state()["state"])
    optimizer.half()
    optimizer.match_precision()
    torch.testing.assert_close(optimizer.get_extra_state()["state"], before, rtol=0, atol=0)
    assert optimizer.skipped.dtype == torch.float32
    optimizer.descend(loss(parameters))


def test_no_gradient_is_left_over_or_taken_along() -> None:
    (weight,) = parameters = [nn.Parameter(torch.ones(1))]
    weight.grad = torch.full((1,), 1e6)
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(-weight.sum())
    assert weight.item() > 1
    assert weight.grad is None


def test_with_nothing_to_train_a_step_does_nothing() -> None:
    optimizer = Adam([], lr=0.1)
    optimizer.descend(torch.ones(()))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.double()


def test_a_loaded_optimizer_goes_on_as_if_it_had_not_been() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    loaded = Adam(twins, lr=0.1)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.descend(loss(parameters))
        loaded.descend(loss(twins))
    torch.testing.assert_close(twins, parameters, rtol=0, atol=0)


def test_a_snapshot_can_be_loaded_twice() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    snapshot = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(snapshot)
    optimizer.load_state_dict(snapshot)
    optimizer.descend(loss(parameters))
    moments, expected = snapshot["_extra_state"]["state"], before["_extra_state"]["state"]
    for index in range(len(parameters)):
        torch.testing.assert_close(moments[index], expected[index], rtol=0, atol=0)


def test_a_conversion_carries_the_moments_along() -> None:
    parameters = weights()
    optimizer = Adam(parameters, lr=0.1)
    optimizer.descend(loss(parameters))
    for parameter in parameters:
        parameter.data = parameter.data.double()
    optimizer.double()
    optimizer.match_precision()
    assert optimizer.adam is not None
    moments = [moment for state in optimizer.adam.state.values() for moment in (state["exp_avg"], state["exp_avg_sq"])]
    assert {moment.dtype for moment in moments} == {torch.float64}
    optimizer.descend(loss(parameters))


def test_a_gradient_laid_out_differently_is_the_same_gradient() -> None:
    weight = nn.Parameter(torch.zeros(2, 3, 4, 4))
    wanted = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    adam = Adam([weight], lr=0.1)
    adam.step([wanted.contiguous(memory_format=torch.channels_last)], torch.zeros(()))
    torch.testing.assert_close(weight.detach(), -0.1 * wanted.sign(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_is_skipped_and_counted(value: float) -> None:
    weight = nn.Parameter(torch.ones(2))
    adam = Adam([weight], lr=0.1)
    adam.descend(weight.sum())
    before = weight.detach().clone()
    adam.descend((weight * value).sum())
    assert torch.equal(weight.detach(), before)
    assert adam.skipped.item() == 1
    adam.descend(weight.sum())
    torch.testing.assert_close(weight.detach(), before - 0.1)  # the moments were left alone as well


MAKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adam": lambda parameters: Adam(parameters, lr=0.1),
    "plain": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "nesterov": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
}
every = pytest.mark.parametrize("kind", MAKERS)


@settings(max_examples=30, deadline=None)
@given(
    lr=st.floats(1e-4, 0.5),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    nesterov=st.booleans(),
    weight_decay=st.sampled_from([0.0, 1e-3, 0.1]),
    seed=st.integers(0, 99),
)
def test_sgd_takes_the_steps_of_torchs_own(
    lr: float, momentum: float, nesterov: bool, weight_decay: float, seed: int
) -> None:
    options: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    options["nesterov"] = nesterov and momentum > 0
    parameters, twins = ([nn.Parameter(p.detach().double()) for p in weights(seed)] for _ in range(2))
    ours, theirs = SGD(parameters, **options), torch.optim.SGD(twins, **options, foreach=False)
    for _ in range(5):
        ours.descend(loss(parameters))
        theirs.zero_grad()
        torch.autograd.backward(loss(twins))
        theirs.step()
    torch.testing.assert_close(parameters, twins, rtol=1e-12, atol=1e-12)


@every
def test_a_parameter_that_took_no_part_stays(kind: str) -> None:
    parameters = weights()
    optimizer, before = MAKERS[kind](parameters), parameters[1].detach().clone()
    for _ in range(2):
        optimizer.descend(loss(parameters[:1]))
    assert torch.equal(parameters[1], before)


@every
def test_the_first_loss_may_already_be_not_finite(kind: str) -> None:
    parameters, spoiled = weights(), weights()
    optimizer, other = MAKERS[kind](parameters), MAKERS[kind](spoiled)
    other.descend(loss(spoiled) * torch.nan)
    assert other.skipped.item() == 1
    for _ in range(3):
        optimizer.descend(loss(parameters))
        other.descend(loss(spoiled))
    torch.testing.assert_close(spoiled, parameters, rtol=0, atol=0)


@every
def test_a_copy_goes_on_alone(kind: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    held = nn.ModuleList([nn.ParameterList([weight]), MAKERS[kind]([weight])])

    def descend(which: nn.ModuleList) -> None:
        parameters, optimizer = which
        assert isinstance(optimizer, Optimizer)
        optimizer.descend(loss(list(parameters.parameters())))

    descend(held)
    twin = copy.deepcopy(held)
    before = copy.deepcopy(held.state_dict())
    descend(twin)
    torch.testing.assert_close(held.state_dict(), before, rtol=0, atol=0)
    descend(held)
    torch.testing.assert_close(twin.state_dict(), held.state_dict(), rtol=0, atol=0)


@every
def test_each_loads_moves_and_converts(kind: str) -> None:
    parameters = weights()
    optimizer = MAKERS[kind](parameters)
    optimizer.descend(loss(parameters))
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    loaded = MAKERS[kind](twins)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for some in (parameters, twins):
        for parameter in some:
            parameter.data = parameter.data.double()
    for each in (optimizer, loaded):
        each.half()
        each.match_precision()
    kept = [state[key] for state in optimizer.get_extra_state()["state"].values() for key in optimizer.moments]
    assert {moment.dtype for moment in kept} <= {torch.float64}
    for _ in range(2):
        optimizer.descend(loss(parameters))
        loaded.descend(loss(twins))
    torch.testing.assert_close(twins, parameters, rtol=0, atol=0)


@every
def test_a_loss_without_a_gradient_is_explained(kind: str) -> None:
    parameters = weights()
    with pytest.raises(UnsuitableModel, match="no gradient reaches the parameters"):
        MAKERS[kind](parameters).descend(torch.ones(()))


@dataclass(frozen=True, kw_only=True)
class Trained(Method):
    """A step of some optimizer on every batch."""

    kind: str = "momentum"

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        return TrainedLearner(self, network)


class TrainedLearner(Learner):
    def __init__(self, method: Trained, network: Network) -> None:
        super().__init__()
        self.network = network.fork("affine")
        self.optimizer = MAKERS[method.kind](list(self.network.parameters()))

    def predict(self, images: Tensor) -> Tensor:
        return self.network.predict(images)

    def step(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        self.optimizer.descend(logits.square().mean())
        self.updates += 1
        return logits.detach()


@every
def test_an_adapter_converts_the_moments_of_any_optimizer(kind: str) -> None:
    adapter = adapt(small_network(), Trained(kind=kind))
    adapter(stream(8))
    adapter.to(torch.bfloat16)
    optimizer = next(module for module in adapter.modules() if isinstance(module, Optimizer))
    for parameter, kept in optimizer.get_extra_state()["state"].items():
        assert {kept[key].dtype for key in optimizer.moments} <= {torch.float32}, parameter
    adapter(stream(8).bfloat16())


@every
def test_a_guard_hears_of_losses_that_are_not_finite(kind: str) -> None:
    adapter = adapt(small_network(), Trained(kind=kind))
    case = GuardState(adapter, Guard())
    case.begin_step(adapter)
    case.optimizers[0].skipped.add_(1)
    assert math.isnan(case.signs(torch.zeros(8, 5), None).largest)


@pytest.mark.parametrize("make", [lambda some: Adam(some, lr=0.1), lambda some: SGD(some, lr=0.1, momentum=0.9)])
def test_a_step_that_is_not_wanted_is_left_out_and_not_counted(make: Callable[..., Optimizer]) -> None:
    parameters, twins = weights(), weights()
    optimizer, other = make(parameters), make(twins)
    for wanted in (False, True, False, True):
        optimizer.descend(loss(parameters), when=torch.tensor(wanted))
        if wanted:
            other.descend(loss(twins))
    assert all(torch.equal(one, two) for one, two in zip(parameters, twins, strict=True))
    torch.testing.assert_close(optimizer.get_extra_state(), other.get_extra_state(), rtol=0, atol=0)
    optimizer.descend(loss(parameters) * torch.nan, when=torch.tensor(True))
    assert optimizer.skipped.item() == 1
