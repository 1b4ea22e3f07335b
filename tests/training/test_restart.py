import copy

import pytest
import torch
from torch import nn

from resitta.training.optimizer import SGD, Adam, Optimizer
from resitta.training.restart import Restart


def made(kind: str) -> tuple[list[nn.Parameter], Optimizer, Restart]:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor(3.0))]
    optimizer = SGD(parameters, lr=0.1, momentum=0.9) if kind == "sgd" else Adam(parameters, lr=0.1)
    return parameters, optimizer, Restart(parameters)


def descend(parameters: list[nn.Parameter], optimizer: Optimizer, times: int) -> None:
    for _ in range(times):
        optimizer.descend(sum((p.square() + p.sin()).sum() for p in parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_what_follows_a_restart_is_what_followed_the_start(kind: str) -> None:
    (parameters, optimizer, restart), (twins, other, _) = made(kind), made(kind)
    descend(parameters, optimizer, 3)
    restart.parameters_of(optimizer, torch.tensor(True))
    optimizer.forget(torch.tensor(True))
    for times in (1, 2):
        descend(parameters, optimizer, times)
        descend(twins, other, times)
        assert all(torch.equal(one, two) for one, two in zip(parameters, twins, strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_without_the_flag_nothing_changes(kind: str) -> None:
    parameters, optimizer, restart = made(kind)
    descend(parameters, optimizer, 3)
    before, state = copy.deepcopy(parameters), copy.deepcopy(optimizer.get_extra_state())
    restart.parameters_of(optimizer, torch.tensor(False))
    optimizer.forget(torch.tensor(False))
    torch.testing.assert_close(parameters, before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.get_extra_state(), state, rtol=0, atol=0)


def test_even_moments_that_are_not_finite_are_forgotten() -> None:
    parameters, optimizer, restart = made("sgd")
    optimizer.step([torch.full((2,), torch.nan), torch.zeros(())], torch.zeros(()))
    restart.parameters_of(optimizer, torch.tensor(True))
    optimizer.forget(torch.tensor(True))
    descend(parameters, optimizer, 2)
    assert all(parameter.isfinite().all() for parameter in parameters)


def test_the_first_values_are_no_state() -> None:
    assert made("sgd")[2].state_dict() == {}


def test_with_nothing_to_train_nothing_happens() -> None:
    optimizer = SGD([], lr=0.1)
    Restart([]).parameters_of(optimizer, torch.tensor(True))
    optimizer.forget(torch.tensor(True))
