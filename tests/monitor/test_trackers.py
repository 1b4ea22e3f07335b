"""Events become metrics of an experiment tracker, at intervals."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import stream
from torch import nn

from resitta import Adapter, adapt, trackers
from resitta.errors import MissingExtra
from resitta.monitor.events import (
    DomainChanged,
    Event,
    GuardEnded,
    GuardFired,
    LabelPriorSwitched,
    Restarted,
    Updated,
    numbers_of,
)

FIRED = GuardFired(samples=70, reason="drift", value=2.0, bound=1.0, action="warn")
EVENTS: list[Event] = [
    FIRED,
    GuardEnded(samples=90, reason="drift", found=3, lasted=20),
    LabelPriorSwitched(samples=91, on=True),
    DomainChanged(samples=95, changes=2),
    Restarted(samples=0),
]


class Run:
    """A run of Weights & Biases, as far as a tracker uses it."""

    def __init__(self) -> None:
        self.defined: list[Any] = []
        self.rows: list[dict[str, float]] = []

    def define_metric(self, name: str, **options: str) -> None:
        self.defined.append((name, options))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


class Mlflow:
    """The module mlflow, as far as a tracker uses it."""

    def __init__(self, active: str | None = None) -> None:
        self.active, self.started = active, 0
        self.logged: list[tuple[Any, ...]] = []
        self.waited = 0

    def active_run(self) -> Any:
        return self.active and SimpleNamespace(info=SimpleNamespace(run_id=self.active))

    def start_run(self) -> Any:
        self.started += 1
        return SimpleNamespace(info=SimpleNamespace(run_id="started"))

    def MlflowClient(self) -> "Mlflow":  # noqa: N802  (mlflow's own name)
        return self

    def log_metric(self, run_id: str, name: str, value: float, *, step: int, synchronous: bool) -> Any:
        assert not synchronous, "a slow server must not delay the stream"
        self.logged.append((run_id, name, value, step))
        return self

    def wait(self) -> None:
        self.waited += 1


def learned(adapter: Adapter, batches: int) -> Adapter:
    for batch in torch.split(stream(64 * batches), 64):
        adapter(batch)
    return adapter


def test_updates_are_logged_at_intervals_and_other_events_at_once(model: nn.Module) -> None:
    run, adapter, heard = Run(), adapt(model, "resitta"), list[Event]()
    adapter.listen(trackers.WandB(run, every=128))
    adapter.listen(heard.append)
    learned(adapter, 5)
    updates = [event for event in heard if isinstance(event, Updated) and event.samples in (64, 192, 320)]
    assert run.rows == [{**numbers_of(event), "resitta/samples": event.samples} for event in updates]
    assert set(run.rows[0]) == {"resitta/entropy", "resitta/drift", "resitta/turnover", "resitta/samples"}
    del run.rows[:]
    for event in EVENTS:
        adapter.emit(event)
    assert run.rows == [
        {"resitta/guard/drift": 2.0, "resitta/samples": 70},
        {"resitta/guard/drift/found": 3, "resitta/samples": 90},
        {"resitta/label_prior": 1.0, "resitta/samples": 91},
        {"resitta/domain_changes": 2.0, "resitta/samples": 95},
    ]


def test_after_a_reset_the_first_update_is_logged(model: nn.Module) -> None:
    run, adapter = Run(), adapt(model, "resitta")
    adapter.listen(trackers.WandB(run))
    learned(adapter, 2).reset()
    learned(adapter, 2)
    assert [row["resitta/samples"] for row in run.rows] == [64, 64]


def test_charts_are_over_samples(model: nn.Module) -> None:
    run = Run()
    trackers.WandB(run)
    assert run.defined == [("resitta/samples", {}), ("resitta/*", {"step_metric": "resitta/samples"})]


@pytest.mark.parametrize("active", [Run(), None])
def test_the_active_run_of_wandb_is_used_or_one_is_started(active: Run | None, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Run()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=active, init=lambda: started))
    assert trackers.WandB().run is (active or started)


def test_mlflow_gets_metrics_with_samples_as_steps(model: nn.Module) -> None:
    mlflow, adapter = Mlflow("active"), adapt(model, "tent")
    tracker = trackers.MLflow(every=1, module=mlflow)
    adapter.listen(tracker)
    learned(adapter, 2)
    assert [(run, name, step) for run, name, _, step in mlflow.logged] == [
        ("active", f"resitta/{name}", step) for step in (64, 128) for name in ("entropy", "drift")
    ]
    tracker.close()
    assert mlflow.waited == 2


@pytest.mark.parametrize(("given", "active", "used"), [("b", "a", "b"), (None, "a", "a"), (None, None, "started")])
def test_the_run_of_mlflow(given: str | None, active: str | None, used: str) -> None:
    mlflow = Mlflow(active)
    assert trackers.MLflow(given, module=mlflow).run_id == used
    assert mlflow.started == (used == "started")


def test_a_tracker_that_fails_stops_nothing(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    adapter = adapt(model, "resitta")
    run = Run()
    tracker = trackers.WandB(run)
    run.rows = None  # type: ignore[assignment]
    adapter.listen(tracker)
    assert learned(adapter, 2).samples == 128
    assert "a listener failed on Updated" in caplog.text


@pytest.mark.parametrize(("name", "kind"), [("mlflow", trackers.MLflow), ("wandb", trackers.WandB)])
def test_a_missing_package_is_named(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install .*\[{name}\]"):
        kind()


@pytest.mark.slow
def test_a_real_mlflow_stores_the_metrics(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run() as run:
        adapter, tracker, heard = adapt(model, "resitta"), trackers.MLflow(every=128), list[Event]()
        adapter.listen(tracker)
        adapter.listen(heard.append)
        learned(adapter, 5).emit(FIRED)
        tracker.close()
        client, told = mlflow.MlflowClient(), [event for event in heard if isinstance(event, Updated)][::2]
        deadline = time.monotonic() + 30
        while len(client.get_metric_history(run.info.run_id, "resitta/drift")) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    for name in ("entropy", "drift", "turnover"):
        points = client.get_metric_history(run.info.run_id, f"resitta/{name}")
        found = sorted((point.step, point.value) for point in points)
        assert found == [(event.samples, pytest.approx(getattr(event, name))) for event in told]
    assert client.get_run(run.info.run_id).data.metrics["resitta/guard/drift"] == 2.0
