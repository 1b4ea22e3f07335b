import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import BatchNorm
from resitta.norm.class_balanced_bn import (
    ClassBalancedBN,
    LabelledBatch,
    capped_rates,
    instance_moments,
    labelled_batch,
    updating_classes,
)

Case = tuple[BatchNorm, Tensor]
Formula = Callable[[BatchNorm, Tensor, Tensor, Tensor], Tensor]
K = 4
LABELS = [1, 3, 1, 0, 1, 3]


def by_hand(rows: Tensor, x: Tensor, labels: list[int], rates: Tensor, gamma: float) -> Tensor:
    """K×2×C statistics after a batch, class by class and value by value."""
    values = x.reshape(*x.shape[:2], -1)
    means, variances = list(rows[:, 0]), list(rows[:, 1])
    steps, spreads, totals = {}, {}, {}
    for k in set(labels):
        mine = [i for i, label in enumerate(labels) if label == k]
        deltas = {i: values[i] - means[k][:, None] for i in mine}
        steps[k] = sum(rates[i] * deltas[i].mean(1) for i in mine)
        spreads[k] = sum(rates[i] * (deltas[i] ** 2).mean(1) for i in mine) - steps[k] ** 2
        totals[k] = sum(rates[i] for i in mine)
    for k, step in steps.items():
        means[k] = means[k] + (1 - gamma) * step
        variances[k] = variances[k] + (1 - gamma) * (spreads[k] - totals[k] * variances[k])
    step, spread, total = (sum(found.values()) / len(found) for found in (steps, spreads, totals))
    means = [mean + gamma * step for mean in means]
    variances = [var + gamma * (spread - total * var) for var in variances]
    return torch.stack([torch.stack(pair) for pair in zip(means, variances, strict=True)])


def mixture(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows[:, 0].sum(0) / K
    between = torch.stack([(row - mean) ** 2 for row in rows[:, 0]]).sum(0) / (K - 1)
    return mean, rows[:, 1].sum(0) / K + between


def wrapped(layer: BatchNorm, gamma: float, **options: object) -> ClassBalancedBN:
    """A layer whose classes differ already."""
    result = ClassBalancedBN(copy.deepcopy(layer), K, gamma, **options)  # type: ignore[arg-type]
    rows = result.rows.read()
    result.rows.write(rows + torch.rand(rows.shape, generator=torch.Generator().manual_seed(5)).to(rows))
    return result


def batch(rates: Tensor) -> LabelledBatch:
    return labelled_batch(torch.tensor(LABELS), rates)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_values_statistics_and_gradients_are_those_of_the_formula(
    case: Case, by_formula: Formula, gamma: float
) -> None:
    layer, x = case
    rates = torch.tensor([0.2, 0.3, 0.1, 0.4, 0.25, 0.3]).double()
    balanced = wrapped(layer, gamma)
    literal, found = x.clone().requires_grad_(), x.clone().requires_grad_()
    rows = by_hand(balanced.rows.read().clone(), literal, LABELS, rates, gamma)
    expected = by_formula(layer, literal, *mixture(rows))
    with updating_classes(balanced, batch(rates)):
        output = balanced(found)
    torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(balanced.rows.read(), rows.detach(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(balanced.statistics(), tuple(s.detach() for s in mixture(rows)))
    wanted = torch.autograd.grad((expected**3).sum(), [literal, layer.weight, layer.bias])
    gradients = torch.autograd.grad((output**3).sum(), [found, balanced.layer.weight, balanced.layer.bias])
    torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(balanced(x), expected.detach())


def test_a_layer_that_does_more_gets_the_same_gradient(by_formula: Formula) -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    layer, rates = Activated(3).double().eval(), torch.full((6,), 0.25).double()
    found = torch.randn(6, 3, 2, 2).double().requires_grad_()
    balanced, literal = wrapped(layer, 0.2), found.detach().clone().requires_grad_()
    expected = by_formula(layer, literal, *mixture(by_hand(balanced.rows.read().clone(), literal, LABELS, rates, 0.2)))
    with updating_classes(balanced, batch(rates)):
        output = balanced(found)
    wanted = torch.autograd.grad((expected.relu() ** 3).sum(), literal)
    torch.testing.assert_close(torch.autograd.grad((output**3).sum(), found), wanted)


def test_without_a_batch_it_is_the_plain_layer(case: Case) -> None:
    layer, x = case
    balanced = ClassBalancedBN(copy.deepcopy(layer), K, gamma=0.5)
    torch.testing.assert_close(balanced(x), layer(x))
    torch.testing.assert_close(balanced.unwrap()(x), layer(x))


def test_a_class_never_moves_further_than_to_its_samples() -> None:
    labels = torch.tensor([0] * 30 + [1] * 3)
    rates = capped_rates(labels, eta=0.05, dtype=torch.float64)
    torch.testing.assert_close(rates, torch.tensor([1 / 30] * 30 + [0.05] * 3).double())
    found = labelled_batch(labels, rates)
    torch.testing.assert_close(found.total, torch.tensor([1.0] * 30 + [0.15] * 3).double())
    torch.testing.assert_close(found.mean_total.item(), (1 + 0.15) / 2)
    assert found.present == 2


def test_a_class_with_a_rate_of_one_has_the_statistics_of_its_samples() -> None:
    layer, x = nn.BatchNorm2d(3).double().eval(), torch.randn(4, 3, 2, 5).double() * 3 + 1
    balanced, labels = ClassBalancedBN(layer, K, gamma=0.0), torch.tensor([2, 2, 2, 2])
    with updating_classes(balanced, labelled_batch(labels, capped_rates(labels, 1.0, torch.float64))):
        balanced(x)
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    torch.testing.assert_close(balanced.rows.read()[2], torch.stack((mean, var)))
    torch.testing.assert_close(balanced.rows.read()[0], torch.tensor([[0.0] * 3, [1.0] * 3]).double())


def test_samples_have_their_own_moments() -> None:
    x = torch.randn(3, 4, 2, 5).double()
    means, variances = instance_moments(x)
    var, mean = torch.var_mean(x, (2, 3), correction=0)
    torch.testing.assert_close((means, variances), (mean, var))


def test_24_bits_give_nearly_the_same_statistics() -> None:
    layer, x = nn.BatchNorm2d(3).eval(), torch.randn(6, 3, 4, 4)
    exact, rounded = wrapped(layer, 0.3), wrapped(layer, 0.3, bits=24)
    for balanced in (exact, rounded):
        for _ in range(20):
            with updating_classes(balanced, batch(torch.full((6,), 0.25))):
                balanced(x)
    torch.testing.assert_close(rounded.rows.read(), exact.rows.read(), rtol=1e-4, atol=1e-4)
    assert not torch.equal(rounded.rows.read(), exact.rows.read())
    assert {name: str(part.dtype) for name, part in rounded.rows.named_buffers()} == {
        "high": "torch.int16",
        "low": "torch.uint8",
    }


def test_statistics_stay_in_float32_in_a_half_precision_model() -> None:
    balanced = ClassBalancedBN(nn.BatchNorm2d(3).eval(), K, gamma=0.1).bfloat16()
    assert balanced.rows.read().dtype == torch.float32
    with updating_classes(balanced, batch(torch.full((6,), 0.25))), torch.autocast("cpu", torch.bfloat16):
        assert balanced(torch.randn(6, 3, 4, 4).bfloat16()).isfinite().all()
    assert balanced.rows.read().dtype == torch.float32
