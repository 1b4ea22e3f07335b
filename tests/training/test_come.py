import math

import pytest
import torch
from torch import Tensor

from resitta import adapt
from resitta.conformance import spread_images, spread_network
from resitta.training.come import LOSSES, come


def literal(logits: Tensor, mass: float) -> Tensor:
    """As the specification writes it, row by row."""
    rows = []
    for z in logits:
        direction = z * (z.norm() / z.norm().detach()) ** -1
        total = direction.exp().sum() + mass
        opinion = torch.cat((direction.exp() / total, torch.tensor([mass]).to(z) / total))
        rows.append(-(opinion * opinion.log()).sum())
    return torch.stack(rows)


@pytest.mark.parametrize(("name", "mass"), [("come", 7), ("come1000", 1000)])
def test_values_and_gradients_by_hand(name: str, mass: int) -> None:
    logits = (torch.randn(20, 7, dtype=torch.float64) * 4).requires_grad_()
    losses = LOSSES[name](logits)  # type: ignore[index]
    torch.testing.assert_close(losses, literal(logits, mass), rtol=1e-12, atol=1e-12)
    gradient, expected = (torch.autograd.grad(loss.sum(), logits)[0] for loss in (losses, literal(logits, mass)))
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close((gradient * logits).sum(1), torch.zeros(20, dtype=torch.float64))  # norms are kept


def test_nothing_overflows() -> None:
    logits = torch.tensor([[500.0, 0.0, -500.0], [0.0, 0.0, 0.0], [0.0, 9.0, -torch.inf]], requires_grad=True)
    losses = come(logits)
    assert losses.isfinite().all()
    assert losses[0].item() == pytest.approx(0)
    assert losses[1].item() == pytest.approx(math.log(6) / 2 + math.log(2) / 2)  # b = 1/6 each, u = 1/2
    (gradient,) = torch.autograd.grad(losses[:2].sum(), logits)
    assert gradient[:2].isfinite().all()


@pytest.mark.parametrize("method", ["tent", "eta", "rdumb", "sar"])
def test_methods_minimise_it_when_asked(method: str) -> None:
    images = spread_images(128)
    plain, other, third = (
        adapt(spread_network(), method, loss=loss, lr=0.01, preset="cifar10" if method == "eta" else None)
        for loss in LOSSES
    )
    for batch in torch.split(images, 64):
        results = [adapter(batch) for adapter in (plain, other, third)]
    assert not torch.allclose(results[0], results[1])
    assert not torch.allclose(results[1], results[2])
