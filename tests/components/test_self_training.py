import math

import pytest
import torch
from torch import nn

from resitta.components.self_training import follow, soft_cross_entropy


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
    follow(teacher, student, nu=0.1)
    torch.testing.assert_close(teacher.weight.tolist(), [1.4, 1.4])
    torch.testing.assert_close(teacher.bias.tolist(), [-0.2, -0.2])
    assert student.weight.tolist() == [5.0, 5.0]
    assert teacher.running_mean is not None
    assert teacher.running_mean.tolist() == [0.0, 0.0]


def test_the_rates_zero_and_one() -> None:
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    before = teacher.weight.tolist()
    follow(teacher, student, nu=0.0)
    assert teacher.weight.tolist() == before
    follow(teacher, student, nu=1.0)
    torch.testing.assert_close(teacher.weight, student.weight)


def test_networks_of_different_shape_are_not_mixed_up() -> None:
    with pytest.raises(ValueError, match="zip"):
        follow(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nu=0.1)
