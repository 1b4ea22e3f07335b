import math

import pytest
import torch
from torch import Tensor

from resitta.training.entropy import entropy, labels_and_entropies, log_probabilities


def plain_entropy(row: list[float]) -> float:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    probabilities = [weight / sum(weights) for weight in weights]
    return -sum(p * math.log(p) for p in probabilities if p > 0)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_entropy_against_plain_arithmetic(scale: float) -> None:
    logits = scale * torch.randn(20, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entropy(logits).tolist(), [plain_entropy(row) for row in logits.tolist()])


def test_tiny_probabilities_keep_their_entropy() -> None:
    gap = 50.0  # float32 rounds 1-p to 1; an ε in the logarithm would swamp p·log p
    expected = gap * math.exp(-gap)
    torch.testing.assert_close(entropy(torch.tensor([[gap, 0.0]])).item(), expected, rtol=1e-4, atol=0)


def test_masked_classes_add_nothing_to_values_or_gradients() -> None:
    free = torch.tensor([[2.0, 0.5, -1.0]], requires_grad=True)
    masked = torch.tensor([[2.0, -torch.inf, 0.5, -1.0]], requires_grad=True)
    assert log_probabilities(masked).isfinite().all()
    torch.testing.assert_close(entropy(masked), entropy(free))
    (expected,) = torch.autograd.grad(entropy(free).sum(), free)
    (found,) = torch.autograd.grad(entropy(masked).sum(), masked)
    torch.testing.assert_close(found[:, [0, 2, 3]], expected)
    assert found[0, 1] == 0


def test_log_probabilities_are_log_softmax() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(log_probabilities(logits), logits.softmax(1).log())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_labels_and_entropies_reach_the_host_in_one_copy(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_()
    copies = []
    to_host = Tensor.cpu

    def counted(self: Tensor) -> Tensor:
        copies.append(self)
        return to_host(self)

    monkeypatch.setattr(Tensor, "cpu", counted)
    labels, entropies = labels_and_entropies(logits)
    assert len(copies) == 1
    assert labels.tolist() == logits.argmax(1).tolist()
    expected = [plain_entropy(row) for row in logits.tolist()]
    torch.testing.assert_close(entropies.tolist(), expected, rtol=1e-5, atol=1e-5)
