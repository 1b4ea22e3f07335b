import math
from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import batches, certain, entropies_of, literal_twin, network, norm_parameters
from torch import Tensor

from resitta import adapt
from resitta.training.destroyed_view import DESTRUCTIONS


class Literal:
    """DeYO, sample by sample, as the specification says."""

    def __init__(self, kind: str, optimizer: str, destroy: Any, plpd: float, layers: int) -> None:
        self.model = literal_twin(network(kind))
        self.trained = norm_parameters(self.model, layers)
        sgd, adam = torch.optim.SGD, torch.optim.Adam
        chosen = sgd(self.trained, lr=0.01, momentum=0.9) if optimizer == "sgd" else adam(self.trained, lr=0.01)
        self.optimizer: torch.optim.Optimizer = chosen
        self.destroy, self.plpd = DESTRUCTIONS[destroy], plpd
        self.generator = torch.Generator().manual_seed(0)
        self.counts: list[int] = []

    def step(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        some = certain(logits, 0.5)
        self.counts.append(0)
        if not some:
            return logits.detach()
        with torch.no_grad():
            destroyed = self.model(self.destroy(images[some], self.generator)).softmax(1)
        p, entropies, terms = logits.softmax(1), entropies_of(logits), []
        for place, row in enumerate(some):
            label = int(p[row].argmax())
            lost = (p[row, label] - destroyed[place, label]).item()
            if lost > self.plpd:
                weight = math.exp(0.4 * math.log(5) - entropies[row].item()) + math.exp(lost)
                terms.append(weight * entropies[row])
        self.counts[-1] = len(terms)
        if terms:
            self.optimizer.zero_grad()
            torch.stack(terms).mean().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return logits.detach()


@pytest.mark.parametrize(
    ("kind", "layers", "optimizer", "destroy"),
    [
        ("batch", 3, "sgd", "patch"),
        ("group", 3, "adam", "patch"),
        ("batch", 3, "adam", "pixel"),
        ("group", 3, "sgd", "occlusion"),
    ],
)
def test_steps_by_hand(kind: str, layers: int, optimizer: Any, destroy: Any) -> None:
    literal = Literal(kind, optimizer, destroy, 0.05, layers)
    adapter = adapt(network(kind), "deyo", lr=0.01, optimizer=optimizer, destroy=destroy, plpd=0.05)
    for images in batches(512, size=8):
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    learned = [parameter.detach() for parameter in adapter.parameters()]
    torch.testing.assert_close(learned, [parameter.detach() for parameter in literal.trained], rtol=1e-9, atol=1e-9)
    assert 0 in literal.counts
    assert max(literal.counts) > (destroy != "occlusion")
    assert adapter.stats.updates == sum(count > 0 for count in literal.counts)


@pytest.mark.parametrize("change", [{"tau": 1e-6}, {"plpd": 1.0}])
def test_nothing_happens_where_nothing_counts(change: dict[str, float]) -> None:
    adapter = adapt(network("batch"), "deyo", **change)  # type: ignore[arg-type]
    first = [parameter.detach().clone() for parameter in adapter.parameters()]
    adapter(next(batches()))
    assert all(torch.equal(one, other) for one, other in zip(first, adapter.parameters(), strict=True))
    assert adapter.stats.updates == 0


def test_single_images_are_taken() -> None:
    adapter = adapt(network("batch"), "deyo", plpd=-1.0, tau=1.0)
    for images in batches(12, size=1):
        assert adapter(images).isfinite().all()
    assert adapter.stats.updates > 0
