"""The vital signs, against sums written out."""

import math

import pytest
import torch
from tests.conftest import stream
from tests.tools import needed
from torch import nn

from resitta import adapt, list_methods
from resitta.monitor.guard.health_signs import Window, drift, statistics, to_host

CPU = torch.device("cpu")


def test_the_window_weighs_exponentially() -> None:
    window, length = Window(3), 10
    usage, uncertainty = [1 / 3] * 3, 0.0
    generator = torch.Generator().manual_seed(0)
    for n in (1, 4, 7):
        logits = torch.randn(n, 3, generator=generator) * 3
        window.add(logits, torch.ones(n, dtype=torch.bool), length)
        share, p = 1 - math.exp(-n / length), logits.softmax(dim=1)
        labels = logits.argmax(dim=1).tolist()
        usage = [(1 - share) * old + share * labels.count(c) / n for c, old in enumerate(usage)]
        mean = -(p * p.log()).sum(dim=1).mean().item() / math.log(3)
        uncertainty = (1 - share) * uncertainty + share * mean
    assert window.usage.tolist() == pytest.approx(usage, rel=1e-5)
    assert float(window.entropy) == pytest.approx(uncertainty, rel=1e-5)
    assert float(window.diversity()) == pytest.approx(math.exp(-sum(u * math.log(u) for u in usage)), rel=1e-5)


def test_what_does_not_count_leaves_no_trace() -> None:
    window = Window(3)
    logits = torch.tensor([[9.0, 0.0, 0.0], [torch.nan] * 3])
    window.add(logits, torch.tensor([False, True]), length=1)
    assert window.usage.tolist() == pytest.approx([1 / 3] * 3)
    assert float(window.entropy) == 0


def test_diversity_runs_from_one_to_all() -> None:
    window = Window(4)
    assert float(window.diversity()) == pytest.approx(4)
    window.add(torch.tensor([[9.0, 0, 0, 0]]).expand(500, 4), torch.ones(500, dtype=torch.bool), length=1)
    assert float(window.diversity()) == pytest.approx(1, abs=1e-4)


def test_drift_is_the_distance_in_units_of_the_spread(model: nn.Module) -> None:
    adapter = adapt(model, "resitta")
    for batch in torch.split(stream(256), 64):
        adapter(batch)
    layers, expected = statistics(adapter.learner, adapter.source), []
    assert len(layers) == 4  # two layers of teacher and student
    for layer, source in layers:
        mean, var = layer.statistics()  # type: ignore[misc]
        assert source.running_mean is not None
        assert source.running_var is not None
        moved = (mean - source.running_mean).square() + (var.sqrt() - source.running_var.sqrt()).square()
        expected.append(math.sqrt(moved.sum() / source.running_var.sum()))
    assert float(drift(layers, CPU)) == pytest.approx(sum(expected) / 4, rel=1e-5)
    assert float(drift(layers, CPU)) > 0.01


@pytest.mark.parametrize("method", list_methods())
def test_a_fresh_adapter_has_not_drifted(model: nn.Module, method: str) -> None:
    adapter = adapt(model, method, **needed(method))
    spread = 1.0 if method == "unmix" else 1e-6  # its components start at random around the source
    assert float(drift(statistics(adapter.learner, adapter.source), CPU)) == pytest.approx(0, abs=spread)


def test_all_signs_come_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    plain = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> object:
        copies.append(tensor.numel())
        return plain(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    signs = to_host(Window(5), torch.tensor(0.25), torch.tensor(torch.inf), torch.tensor([True, False, True]))
    assert (signs.drift, signs.largest, signs.unknown) == (0.25, math.inf, 2)
    assert copies == [5]
