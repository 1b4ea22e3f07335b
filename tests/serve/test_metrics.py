from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn

import resitta
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.service import Service


def page(stats: Any, streams: Any = None, **report: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    """The values of a page, by name and labels, for a service whose numbers all differ."""
    counters = SimpleNamespace(learned=11, dropped=12, skipped=13, screened=14, waiting=15)
    values: dict[str, Any] = {
        "failed_saves": 16,
        "guard_fired": {"unknown": 17, "drift": 18},
        "paused": False,
        "version": 19,
        "muted": {"one", "two"},
        "harmful": {"one"},
    }
    writer = SimpleNamespace(report=lambda: SimpleNamespace(**values | report, counters=counters, stats=stats))
    metrics = ServiceMetrics(
        cast(Service, SimpleNamespace(predicted=10, waiting=20, writer=writer, streams=lambda: streams))
    )
    metrics.observe(0.25, [0.5, 1.5])
    metrics.refusals.labels("429").inc()
    families = text_string_to_metric_families(metrics.page().decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def stats_of(bank: Any = None, shadow: Any = None) -> Any:
    return SimpleNamespace(updates=21, bank=bank, drift={"bn1": 0.5, "bn2": 0.25}, shadow=shadow)


def test_every_number_of_the_service_is_on_the_page() -> None:
    found = page(stats_of(SimpleNamespace(occupancy=22)))
    expected = {
        ("resitta_images_predicted_total", ()): 10,
        ("resitta_images_learned_total", ()): 11,
        ("resitta_images_dropped_total", ()): 12,
        ("resitta_images_skipped_total", ()): 13,
        ("resitta_images_screened_total", ()): 14,
        ("resitta_waiting_to_learn", ()): 15,
        ("resitta_failed_saves_total", ()): 16,
        ("resitta_guard_fired_total", ("unknown",)): 17,
        ("resitta_guard_fired_total", ("drift",)): 18,
        ("resitta_learning", ()): 1,
        ("resitta_state_version", ()): 19,
        ("resitta_clients_muted", ()): 2,
        ("resitta_clients_harmful", ()): 1,
        ("resitta_waiting_for_prediction", ()): 20,
        ("resitta_updates", ()): 21,
        ("resitta_bank_samples", ()): 22,
        ("resitta_drift", ("bn1",)): 0.5,
        ("resitta_drift", ("bn2",)): 0.25,
        ("resitta_predict_seconds_count", ()): 1,
        ("resitta_predict_seconds_sum", ()): 0.25,
        ("resitta_entropy_nats_count", ()): 2,
        ("resitta_entropy_nats_sum", ()): 2,
        ("resitta_refused_total", ("429",)): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not any(name.startswith(("resitta_shadow", "resitta_feedback")) for name, _ in found)


def test_a_paused_service_without_a_bank() -> None:
    found = page(stats_of(), paused=True)
    assert found["resitta_learning", ()] == found["resitta_bank_samples", ()] == 0


def test_the_comparison_with_the_source_is_on_the_page(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "tent", shadow=1.0)
    adapter(torch.rand(8, 3, 10, 10))
    adapter.feedback([0, 1, 2, 99], [0, 1, 2, 3])
    found = page(stats_of(shadow=adapter.stats.shadow))
    expected = {"shadow_compared": 8, "feedback_used": 3, "feedback_not_compared": 0, "feedback_unknown": 1}
    assert {name: found[f"resitta_{name}_total", ()] for name in expected} == pytest.approx(expected)
    assert found["resitta_fell_back_total", ()] == 0
