"""Events are frozen records."""

import copy
import dataclasses
import logging
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.conftest import stream
from tests.tools import needed
from torch import nn

from resitta import adapt, list_methods
from resitta.errors import MissingExtra
from resitta.monitor.events import Event, GuardFired, Prometheus, Restarted, TensorBoard, Updated


def test_events_are_frozen_keywords() -> None:
    for kind in get_args(Event):
        assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Restarted(samples=0).samples = 1  # type: ignore[misc]


def test_updates_are_told_as_they_happen(model: nn.Module) -> None:
    adapter, heard = adapt(model, "resitta"), list[Event]()
    adapter.listen(heard.append)
    batches = torch.split(stream(192), 48)
    logits = [adapter(batch) for batch in batches]
    told = [event for event in heard if isinstance(event, Updated)]
    assert [(event.samples, event.updates) for event in told] == [(96, 1), (144, 2), (192, 3)]
    p = logits[-1].softmax(dim=1)
    assert told[-1].entropy == pytest.approx(-(p * p.log()).sum(dim=1).mean().item(), rel=1e-5)
    assert told[-1].drift == pytest.approx(adapter.stats.mean_drift)


def test_turnover_is_the_share_of_the_memory_that_is_new(model: nn.Module) -> None:
    adapter, heard = adapt(model, "resitta"), list[Event]()
    adapter.listen(heard.append)
    before: set[int] = set()
    for batch in torch.split(stream(320), 64):
        adapter(batch)
        memory = adapter.learner.memory()
        assert memory is not None
        now = set(memory.births[: memory.size].tolist())
        event = heard[-1]
        assert isinstance(event, Updated)
        assert event.turnover == pytest.approx(len(now - before) / len(now))
        before = now


@pytest.mark.parametrize("method", list_methods())
def test_every_method_can_be_listened_to(model: nn.Module, method: str) -> None:
    adapter, heard = adapt(model, method, **needed(method)), list[Event]()
    adapter.listen(heard.append)
    for batch in torch.split(stream(128), 64):
        adapter(batch)
    told = [event for event in heard if isinstance(event, Updated)]
    assert [event.updates for event in told] == list(range(1, adapter.stats.updates + 1))
    assert all((event.turnover is None) == (adapter.stats.bank is None) for event in told)


def test_a_failing_listener_stops_nothing(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise OSError("disk full")

    adapter, heard = adapt(model, "tent"), list[Event]()
    adapter.listen(fail)
    adapter.listen(heard.append)
    with caplog.at_level(logging.ERROR, "resitta"):
        adapter(stream(8))
    assert len(heard) == 1
    assert "a listener failed on Updated" in caplog.text


def test_other_events_are_passed_on(model: nn.Module) -> None:
    adapter, heard = adapt(model, "tent"), list[Event]()
    adapter.listen(heard.append)
    fired = GuardFired(samples=1, reason="drift", value=2.0, bound=1.0, action="warn")
    adapter.emit(fired)
    adapter.emit("no event of ours")
    adapter.reset()
    assert heard == [fired, Restarted(samples=0)]


def test_after_a_reset_updates_are_told_again(model: nn.Module) -> None:
    adapter, heard = adapt(model, "resitta"), list[Event]()
    adapter.listen(heard.append)
    for _ in range(2):
        adapter(stream(64))
        adapter.reset()
    told = [event for event in heard if isinstance(event, Updated)]
    assert [event.updates for event in told] == [1, 1]
    assert [event.turnover for event in told] == [1.0, 1.0]


def test_importing_logs_nothing_and_sets_no_handler() -> None:
    assert logging.getLogger("resitta").handlers == []
    assert torch.is_grad_enabled()


def test_a_copy_of_an_adapter_reports_to_nobody(model: nn.Module) -> None:
    heard: list[object] = []
    adapter = adapt(model, "tent")
    adapter.listen(heard.append)
    twin = copy.deepcopy(adapter)
    twin(stream(8))
    assert heard == []
    adapter(stream(8))
    assert len(heard) == 1


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


def test_curves_are_written(model: nn.Module, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board, adapter = TensorBoard(tmp_path), adapt(model, "resitta")
    adapter.listen(board)
    for batch in torch.split(stream(128), 64):
        adapter(batch)
    adapter.emit(GuardFired(samples=128, reason="drift", value=2.0, bound=1.0, action="warn"))
    adapter.reset()
    board.close()
    written = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [point.step for point in written.Scalars("resitta/turnover")] == [64, 128]
    assert written.Scalars("resitta/guard/drift")[0].value == 2.0


def test_a_missing_tensorboard_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[tensorboard\]"):
        TensorBoard(tmp_path)
