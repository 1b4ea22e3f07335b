import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resitta.training.optimizer import SGD, Adam
from resitta.training.sam import SAM


def weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in [(3, 2), (4,)]]


def loss(parameters: list[nn.Parameter]) -> Tensor:
    return torch.stack([(parameter**2 + 3 * parameter.sin()).sum() for parameter in parameters]).sum()


def literal_step(parameters: list[nn.Parameter], base: torch.optim.Optimizer, rho: float) -> None:
    """Foret et al., Algorithm 1, with the joint norm written out."""
    gradients = torch.autograd.grad(loss(parameters), parameters)
    norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
    start = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(rho * gradient / norm)
    worst = torch.autograd.grad(loss(parameters), parameters)
    with torch.no_grad():
        for parameter, value, gradient in zip(parameters, start, worst, strict=True):
            parameter.copy_(value)
            parameter.grad = gradient
    base.step()


@settings(max_examples=25, deadline=None)
@given(rho=st.floats(1e-3, 2.0), momentum=st.sampled_from([0.0, 0.9]), seed=st.integers(0, 99))
def test_steps_are_those_of_the_paper_with_sgd(rho: float, momentum: float, seed: int) -> None:
    parameters, twins = weights(seed), weights(seed)
    sam = SAM(SGD(parameters, lr=0.05, momentum=momentum), rho=rho)
    base = torch.optim.SGD(twins, lr=0.05, momentum=momentum)
    for _ in range(4):
        sam.descend(loss(parameters), lambda: loss(parameters))
        literal_step(twins, base, rho)
    torch.testing.assert_close(parameters, twins, rtol=1e-9, atol=1e-9)


def test_adam_can_take_the_step_as_well() -> None:
    parameters, twins = weights(), weights()
    sam, base = SAM(Adam(parameters, lr=0.05), rho=0.3), torch.optim.Adam(twins, lr=0.05)
    for _ in range(4):
        sam.descend(loss(parameters), lambda: loss(parameters))
        literal_step(twins, base, 0.3)
    torch.testing.assert_close(parameters, twins, rtol=1e-9, atol=1e-9)


def test_the_second_pass_sees_the_parameters_a_distance_rho_away() -> None:
    parameters = weights()
    start, seen = [p.detach().clone() for p in parameters], []

    def again() -> Tensor:
        seen.append(sum(float((p.detach() - s).square().sum()) for p, s in zip(parameters, start, strict=True)) ** 0.5)
        return loss(parameters)

    worst = SAM(SGD(parameters, lr=0.1), rho=0.25).descend(loss(parameters), again)
    assert seen == [pytest.approx(0.25)]
    assert worst > loss(weights())


@pytest.mark.parametrize("spoil", [lambda value: value * torch.nan, lambda value: value + torch.inf])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_loss_that_is_not_finite_in_either_pass_is_skipped_and_counted_once(
    bad: int, spoil: Callable[[Tensor], Tensor]
) -> None:
    parameters = weights()
    base = SGD(parameters, lr=0.1, momentum=0.9)
    sam = SAM(base, rho=0.25)
    sam.descend(loss(parameters), lambda: loss(parameters))
    before, state = [p.detach().clone() for p in parameters], copy.deepcopy(base.get_extra_state())
    first, second = (spoil if number == bad else torch.clone for number in range(2))
    sam.descend(first(loss(parameters)), lambda: second(loss(parameters)))
    torch.testing.assert_close([p.detach() for p in parameters], before, rtol=0, atol=0)
    torch.testing.assert_close(base.get_extra_state()["state"], state["state"], rtol=0, atol=0)
    assert base.skipped.item() == 1


def test_an_error_in_the_second_pass_leaves_the_parameters_where_they_were() -> None:
    parameters = weights()
    before = [p.detach().clone() for p in parameters]

    def again() -> Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        SAM(SGD(parameters, lr=0.1), rho=0.25).descend(loss(parameters), again)
    torch.testing.assert_close([p.detach() for p in parameters], before, rtol=0, atol=0)


def test_a_gradient_of_zero_moves_nothing() -> None:
    weight = nn.Parameter(torch.zeros(2))
    SAM(SGD([weight], lr=0.1)).descend(weight.square().sum(), lambda: weight.square().sum())
    assert torch.equal(weight.detach(), torch.zeros(2))


def test_with_nothing_to_train_only_the_second_loss_comes_back() -> None:
    assert SAM(SGD([], lr=0.1)).descend(torch.ones(()), lambda: torch.tensor(2.0)).item() == 2


def test_a_loaded_step_goes_on_as_if_it_had_not_been() -> None:
    parameters, twins = weights(), weights()
    sam, other = (SAM(SGD(some, lr=0.1, momentum=0.9), rho=0.1) for some in (parameters, twins))
    sam.descend(loss(parameters), lambda: loss(parameters))
    other.load_state_dict(copy.deepcopy(sam.state_dict()))
    with torch.no_grad():
        for twin, parameter in zip(twins, parameters, strict=True):
            twin.copy_(parameter)
    for one, some in ((sam, parameters), (other, twins)):
        one.descend(loss(some), lambda some=some: loss(some))  # type: ignore[misc]
    torch.testing.assert_close(twins, parameters, rtol=0, atol=0)
