"""An anchor bounds how far parameters can go, and does nothing where it is not asked for."""

import copy
import math

import pytest
import torch
from torch import nn

from resitta import adapt
from resitta.norm.bn_layers import BatchStatisticsBN, batch_moments
from resitta.training.network import Network
from resitta.training.optimizer import Adam
from resitta.training.self_training import (
    Anchor,
    LocalReduction,
    SelfTraining,
    ema_update,
    seeded_view,
    soft_cross_entropy,
)


def test_the_loss_is_the_cross_entropy_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 6, 4, dtype=torch.float64, generator=generator)
    expected = []
    for q_row, p_row in zip(student.tolist(), teacher.tolist(), strict=True):
        q_sum, p_sum = sum(map(math.exp, q_row)), sum(map(math.exp, p_row))
        pairs = zip(p_row, q_row, strict=True)
        expected.append(-sum(math.exp(p) / p_sum * math.log(math.exp(q) / q_sum) for p, q in pairs))
    torch.testing.assert_close(soft_cross_entropy(student, teacher).tolist(), expected)


def test_its_gradient_is_the_difference_of_the_probabilities() -> None:
    student = torch.tensor([[1.0, 0.0, -2.0]], requires_grad=True)
    teacher = torch.tensor([[0.0, 3.0, 0.5]])
    (gradient,) = torch.autograd.grad(soft_cross_entropy(student, teacher).sum(), student)
    torch.testing.assert_close(gradient, (student.softmax(1) - teacher.softmax(1)).detach())


def test_masked_classes_keep_the_loss_finite() -> None:
    masked, free = torch.tensor([[1.0, -torch.inf, 0.0]]), torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(soft_cross_entropy(masked, masked), soft_cross_entropy(free, free))


def test_the_teacher_follows_the_parameters_and_nothing_else() -> None:
    teacher, student = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    nn.init.constant_(teacher.weight, 1.0)
    nn.init.constant_(student.weight, 5.0)
    nn.init.constant_(student.bias, -2.0)
    student.running_mean = torch.full((2,), 9.0)
    ema_update(teacher, student, nu=0.1)
    torch.testing.assert_close(teacher.weight.tolist(), [1.4, 1.4])
    torch.testing.assert_close(teacher.bias.tolist(), [-0.2, -0.2])
    assert student.weight.tolist() == [5.0, 5.0]
    assert teacher.running_mean is not None
    assert teacher.running_mean.tolist() == [0.0, 0.0]


def test_the_rates_zero_and_one() -> None:
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    before = teacher.weight.tolist()
    ema_update(teacher, student, nu=0.0)
    assert teacher.weight.tolist() == before
    ema_update(teacher, student, nu=1.0)
    torch.testing.assert_close(teacher.weight, student.weight)


def test_networks_of_different_shape_are_not_mixed_up() -> None:
    with pytest.raises(RuntimeError, match="same number"):
        ema_update(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nu=0.1)


def test_one_update_by_hand(model: nn.Module) -> None:
    images, weights = torch.rand(6, 3, 10, 10), torch.rand(6)
    nets = SelfTraining(Network(model), BatchStatisticsBN, view=lambda x: x * 0.5, lr=0.1, nu=0.25)
    before = [p.detach().clone() for p in nets.student.parameters()]
    twin = copy.deepcopy(nets)
    targets = twin.teacher(images).softmax(1)
    loss = (-(targets * twin.student(images * 0.5).log_softmax(1)).sum(1) * weights).mean()
    gradients = torch.autograd.grad(loss, list(twin.student.parameters()))
    nets.train_student(images, nets.student.augment(images, nets.view), weights)
    nets.move_teacher()
    for start, gradient, student, teacher in zip(
        before, gradients, nets.student.parameters(), nets.teacher.parameters(), strict=True
    ):
        expected = start - 0.1 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(student.detach(), expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(teacher.detach(), 0.75 * start + 0.25 * expected, atol=1e-4, rtol=0)
    assert all(p.grad is None for p in nets.parameters())


def test_a_view_of_the_users_is_kept_and_none_draws_from_the_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    assert seeded_view(torch.sigmoid, generator, per_sample=False) is torch.sigmoid
    view = seeded_view(None, generator, per_sample=False)
    images = torch.rand(2, 3, 32, 32)
    assert not torch.equal(view(images), view(images))


def test_a_parameter_pushed_for_ever_stays_within_the_bound() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer, anchor = Adam([weight], lr=0.01), Anchor([weight], pull=0.1)
    for _ in range(500):
        optimizer.descend(weight.sum())
        anchor([weight])
    assert torch.allclose(weight.detach(), torch.full((3,), -0.09), atol=1e-3), "lr (1-a) / a"


def test_without_pull_it_keeps_and_changes_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    anchor = Anchor([weight], pull=0.0)
    weight.data.fill_(7.0)
    anchor([weight])
    assert weight.tolist() == [7.0, 7.0]
    assert not list(anchor.buffers())


def test_without_parameters_there_is_nothing_to_hold() -> None:
    Anchor([], pull=0.1)([])
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapter = adapt(model.eval(), "resitta", anchor=0.1, update_every=16)
    adapter(torch.rand(16, 3, 10, 10, generator=torch.Generator().manual_seed(0)))
    assert adapter.stats.updates == 1


def test_it_moves_with_the_network_and_leaves_no_trace_in_its_state() -> None:
    anchor = Anchor([torch.ones(2)], pull=0.5).to(torch.float64)
    assert [buffer.dtype for buffer in anchor.buffers()] == [torch.float64]
    assert not anchor.state_dict()


def test_resitta_with_an_anchor_stays_nearer_to_the_source(model: nn.Module) -> None:
    images = torch.rand(40, 16, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    distances = []
    for anchor in (0.0, 0.1, 1.0):
        adapter = adapt(model, "resitta", anchor=anchor, update_every=16, nu_m=0.5)
        for batch in images:
            adapter(batch)
        exported = dict(adapter.export().named_parameters())
        distances.append(sum(float((exported[name] - p).detach().norm()) for name, p in model.named_parameters()))
    assert distances[0] > 2 * distances[1] > 0
    assert distances[2] < 1e-6


def test_alone_everything_is_as_it_is() -> None:
    union, x, gradients = LocalReduction(), torch.rand(6, 3, 2, 2), [torch.tensor([1.0, 2.0]), None]
    assert union.begin(x) is x
    assert union.begin(x[:0]) is None
    assert union.moments is batch_moments, "layers know by this that they may take their fast paths"
    assert union.mean(torch.tensor([1.0, 2.0, 6.0])) == 3
    assert union.add_gradients(gradients) is gradients
