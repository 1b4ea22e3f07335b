from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from resitta.training.optimizer import SGD, Adam, Optimizer
from resitta.training.split_gradient import descend, partial_gradient, unpacked


class Branches(nn.Module):
    """Two passes use `both`, only the second one `late`, and neither of them `idle`."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.idle = nn.Linear(4, 3), nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.arange(1.0, 4.0))

    def first(self, x: Tensor) -> Tensor:
        logits: Tensor = self.both(x).tanh()
        return logits

    def second(self, x: Tensor) -> Tensor:
        return self.first(x) * self.late


def loss_of(z: Tensor, views: Tensor, rows: Tensor) -> Tensor:
    return (z[rows].softmax(dim=1) * views.log_softmax(dim=1)).sum() + z.square().mean()


@pytest.fixture
def model() -> Branches:
    return Branches().double()


def test_the_parts_sum_to_the_gradient_of_the_whole(model: Branches) -> None:
    x, rows = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 2, 5])
    parameters = [model.both.weight, model.both.bias]
    z = model.first(x)
    whole = torch.autograd.grad(loss_of(z, model.second(x[rows]), rows), parameters, retain_graph=True)
    leaf = z.detach().requires_grad_()
    vector = partial_gradient(loss_of(leaf, model.second(x[rows]), rows), leaf, parameters)
    loss, along, others = unpacked(vector, z, parameters)
    own = torch.autograd.grad(z, parameters, along)
    assert along.shape == z.shape
    torch.testing.assert_close(loss, loss_of(z, model.second(x[rows]), rows).detach())
    for one, other, expected in zip(own, others, whole, strict=True):
        torch.testing.assert_close(one + other, expected, rtol=1e-12, atol=1e-14)


def test_what_a_loss_does_not_depend_on_has_zeros(model: Branches) -> None:
    leaf = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    vector = partial_gradient(leaf.square().sum(), leaf, [model.late, model.idle])
    loss, along, others = unpacked(vector, leaf, [model.late, model.idle])
    torch.testing.assert_close(along, 2 * leaf.detach())
    assert float(loss) == pytest.approx(float(leaf.detach().square().sum()))
    assert [gradient.tolist() for gradient in others] == [[0.0] * 3, [0.0] * 2]


def test_types_and_shapes_survive_packing() -> None:
    half, double = torch.randn(2, 3).bfloat16().requires_grad_(), torch.randn(2, 2).double().requires_grad_()
    vector = partial_gradient(half.double().sum() * 3 + double.prod(), half, [double])
    _, along, (gradient,) = unpacked(vector, half, [double])
    assert (along.dtype, gradient.dtype) == (torch.bfloat16, torch.float64)
    assert (along == 3).all()
    torch.testing.assert_close(gradient, double.detach().prod() / double.detach())


@pytest.mark.parametrize("make", [partial(Adam, lr=0.1), partial(SGD, lr=0.1, momentum=0.9)])
def test_steps_are_those_down_the_whole_loss(
    model: Branches, make: Callable[[Iterable[nn.Parameter]], Optimizer]
) -> None:
    twin = Branches().double()
    twin.load_state_dict(model.state_dict())
    ours, theirs = make(model.both.parameters()), make(twin.both.parameters())
    for _ in range(5):
        x, rows = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1, 2])
        theirs.descend(whole := loss_of(twin.first(x), twin.second(x[rows]), rows))
        z = model.first(x)
        leaf = z.detach().requires_grad_()
        vector = partial_gradient(loss_of(leaf, model.second(x[rows]), rows), leaf, ours.trained)
        torch.testing.assert_close(descend(ours, z, vector), whole.detach())
    for own, other in zip(model.both.parameters(), twin.both.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-14)


def test_a_loss_that_is_not_finite_moves_nothing(model: Branches) -> None:
    optimizer, before = Adam(model.both.parameters(), lr=0.1), model.both.weight.clone()
    z = model.first(torch.randn(6, 4, dtype=torch.float64))
    leaf = z.detach().requires_grad_()
    descend(optimizer, z, partial_gradient(leaf.sum() * torch.nan, leaf, optimizer.trained))
    assert torch.equal(model.both.weight, before)
    assert int(optimizer.skipped) == 1


def test_with_nothing_to_train_a_step_does_nothing() -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    vector = partial_gradient(leaf.sum(), leaf, [])
    assert float(descend(Adam([], lr=0.1), leaf.detach(), vector)) == 6
