"""Metrics in Prometheus' text format."""

import sys

import pytest
from tests.conftest import stream
from torch import nn

from resitta import adapt
from resitta.errors import MissingExtra
from resitta.monitor.events import GuardFired, Prometheus


def test_numbers_are_exposed(model: nn.Module) -> None:
    pytest.importorskip("prometheus_client")
    prometheus, adapter = Prometheus(), adapt(model, "resitta")
    adapter.listen(prometheus)
    adapter(stream(128))
    fired = GuardFired(samples=1, reason="drift", value=2.0, bound=1.0, action="warn")
    adapter.emit(fired)
    adapter.emit(fired)
    lines = prometheus.text().splitlines()
    assert "resitta_samples 128.0" in lines
    assert "resitta_updates 2.0" in lines
    assert 'resitta_guard_fired_total{action="warn",reason="drift"} 2.0' in lines


def test_a_method_without_a_memory_has_no_turnover(model: nn.Module) -> None:
    pytest.importorskip("prometheus_client")
    prometheus, adapter = Prometheus(), adapt(model, "tent")
    adapter.listen(prometheus)
    adapter(stream(8))
    assert "resitta_updates 1.0" in prometheus.text().splitlines()


def test_the_registry_of_a_service_can_be_used() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    Prometheus(registry)
    assert registry.get_sample_value("resitta_samples") == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[prometheus\]"):
        Prometheus()
