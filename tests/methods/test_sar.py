import math
from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import batches, certain, entropies_of, literal_twin, network, norm_parameters
from torch import Tensor

from resitta import adapt, create


class Literal:
    """SAR, sample by sample, as the specification says."""

    def __init__(self, kind: str, optimizer: str, variant: str, lowest: float, layers: int | None) -> None:
        self.model = literal_twin(network(kind))
        self.trained = norm_parameters(self.model, layers)
        self.first = [parameter.detach().clone() for parameter in self.trained]
        self.kind, self.variant, self.lowest = optimizer, variant, lowest
        self.average: float | None = None
        self.resets, self.empty = 0, 0
        self.begin()

    def begin(self) -> None:
        sgd, adam = torch.optim.SGD, torch.optim.Adam
        chosen = sgd(self.trained, lr=0.01, momentum=0.9) if self.kind == "sgd" else adam(self.trained, lr=0.01)
        self.optimizer: torch.optim.Optimizer = chosen

    def gradients(self, logits: Tensor, rows: list[int]) -> tuple[list[Tensor], float | None]:
        if not rows:
            return [torch.zeros_like(parameter) for parameter in self.trained], None
        loss = sum(entropies_of(logits)[row] for row in rows) / len(rows)
        assert isinstance(loss, Tensor)
        return list(torch.autograd.grad(loss, self.trained, retain_graph=True)), loss.item()

    def step(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        reliable = certain(logits)
        ascent, _ = self.gradients(logits, reliable)
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in ascent))
        start = [parameter.detach().clone() for parameter in self.trained]
        with torch.no_grad():
            for parameter, gradient in zip(self.trained, ascent, strict=True):
                parameter.add_(0.05 * gradient / (norm + 1e-12))
        perturbed = self.model(images)
        rows = [row for row in certain(perturbed) if row in reliable]
        self.empty += not rows
        descent, loss = self.gradients(perturbed, rows)
        with torch.no_grad():
            for parameter, value, gradient in zip(self.trained, start, descent, strict=True):
                parameter.copy_(value)
                parameter.grad = gradient
        self.optimizer.step()
        if loss is not None:
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        if self.average is not None and self.average < self.lowest:
            self.reset()
        return logits.detach()

    def reset(self) -> None:
        self.resets += 1
        with torch.no_grad():
            for parameter, value in zip(self.trained, self.first, strict=True):
                parameter.copy_(value)
        if self.variant == "paper":
            self.begin()
            self.average = None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("kind", "layers"), [("batch", 3), ("group", 3)])  # the last of them is left out
def test_steps_by_hand(kind: str, layers: int, optimizer: Any) -> None:
    literal = Literal(kind, optimizer, "paper", 0.0, layers)
    adapter = adapt(network(kind), "sar", lr=0.01, optimizer=optimizer, reset_below=0.0)
    for images in batches(512, size=16):
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    learned = [parameter.detach() for parameter in adapter.parameters()]
    torch.testing.assert_close(learned, [parameter.detach() for parameter in literal.trained], rtol=1e-9, atol=1e-9)
    assert adapter.stats.updates == 32


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resets_by_hand(variant: Any, optimizer: Any) -> None:
    literal = Literal("batch", optimizer, variant, 0.37, None)
    adapter = adapt(
        network("batch"), "sar", lr=0.01, layers="all", variant=variant, reset_below=0.37, optimizer=optimizer
    )
    for images in batches():
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    assert 0 < literal.resets < 16


def test_where_nothing_is_reliable_the_momentum_moves_on() -> None:
    literal = Literal("group", "sgd", "paper", 0.0, None)
    adapter = adapt(network("group"), "sar", lr=0.01, layers="all", reset_below=0.0)
    for images in batches(40, size=1):
        before = [parameter.detach().clone() for parameter in literal.trained]
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    assert literal.empty > 3
    assert not all(torch.equal(one, other) for one, other in zip(before, literal.trained, strict=True))


def test_a_first_batch_without_reliable_samples_changes_nothing() -> None:
    adapter = adapt(network("batch"), "sar", margin=1e-6, reset_below=0.0)
    first = [parameter.detach().clone() for parameter in adapter.parameters()]
    adapter(next(batches()))
    assert all(torch.equal(one, other) for one, other in zip(first, adapter.parameters(), strict=True))
    assert dict(adapter.named_buffers())["learner.average"] == -1  # none yet


def test_the_last_quarter_of_the_layers_stays() -> None:
    few, every = (adapt(network("batch"), create("sar", layers=layers)) for layers in ("early", "all"))
    assert [len(list(adapter.parameters())) for adapter in (few, every)] == [6, 8]
