"""Events: `adapter.listen(callback)` calls a function with a frozen record of each update and of each guard alarm.

>>> import torch
>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta")
>>> adapter.listen(lambda event: print(event.updates, event.samples, event.turnover))
>>> _ = adapter(torch.rand(64, 3, 8, 8))
1 64 1.0

`TensorBoard(folder)` and `Prometheus()` are ready-made callbacks; each needs the extra of its name. Experiment trackers
are in `resitta.trackers`.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from torch import Tensor

from resitta.errors import require
from resitta.method import AdapterLike
from resitta.monitor.callbacks import Callback
from resitta.monitor.shadow.comparison import PairedAccuracy
from resitta.monitor.shadow.records import METRICS, Agreement, Metric, accuracy_metrics, agreement_metrics
from resitta.training.entropy import entropy

logger = logging.getLogger(__name__)

GAUGES = {
    "samples": "Samples learned from so far",
    "updates": "Updates so far; a rollback lowers it",
    "entropy": "Mean entropy of the last batch, in nats",
    "drift": "Mean distance of the statistics from the source",
    "turnover": "Share of the memory that came in with the last update",
}


@dataclass(frozen=True, kw_only=True)
class Updated:
    """The adapter has learned.

    `entropy` is the mean over the batch just predicted, in nats. `drift` is the mean distance of the statistics from
    the source (see `Stats.drift`). `turnover` is the share of the memory that came in since the last such event;
    None for a method without a memory.
    """

    samples: int
    updates: int
    entropy: float
    drift: float
    turnover: float | None


@dataclass(frozen=True, kw_only=True)
class GuardFired:
    """A guard has fired: it measured `value`, but allows `bound`.

    It is emitted when a reason begins, and not again before a `GuardEnded` of the same reason.
    """

    samples: int
    reason: str
    value: float
    bound: float
    action: str


@dataclass(frozen=True, kw_only=True)
class GuardEnded:
    """A guard alarm has ended: a window of samples without it has followed.

    `found` is how often it was found (samples for "unknown", steps for other reasons), over `lasted` samples.
    """

    samples: int
    reason: str
    found: int
    lasted: int


@dataclass(frozen=True, kw_only=True)
class LabelPriorSwitched:
    """The label prior has begun to correct predictions, since neighbours share classes, or has ended to."""

    samples: int
    on: bool


@dataclass(frozen=True, kw_only=True)
class DomainChanged:
    """The method has found that another domain begins: `tide`, and `resitta` with `reset_on_shift`.

    `changes` counts them since the adapter was made or reset, in this process.
    """

    samples: int
    changes: int


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """The adapter was reset, or has loaded a state."""

    samples: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """64 or more further images were compared with the source (`shadow=`): the comparison over all, and the recent one.

    `samples` counts the images predicted so far, in this event and in the following ones.
    """

    samples: int
    running: Agreement
    recent: Agreement


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Labels have come: the accuracies over all labelled images, and over the newest ones."""

    samples: int
    running: PairedAccuracy
    recent: PairedAccuracy


@dataclass(frozen=True, kw_only=True)
class FellBack:
    """The source is significantly better: its predictions are returned from now on, while learning continues."""

    samples: int
    recent: PairedAccuracy


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The source is no longer significantly better: the adapted predictions are returned again."""

    samples: int
    recent: PairedAccuracy


Event = (
    Updated
    | GuardFired
    | GuardEnded
    | LabelPriorSwitched
    | DomainChanged
    | Restarted
    | Compared
    | Labelled
    | FellBack
    | Resumed
)
EventHandler = Callable[[Event], None]


class Listener(Callback):
    """The callback behind `adapter.listen(function)`. Exceptions of the function are logged and do not propagate.

    Only an adapter with a listener computes the numbers in `Updated`: some copies to the host after each update.
    """

    def __init__(self, callback: EventHandler) -> None:
        self.callback = callback
        self.updates = 0
        self.clock = 0

    def after_step(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> None:
        """Report an update, if the step made one."""
        if adapter.learner.updates > self.updates:
            updated = Updated(
                samples=adapter.samples,
                updates=adapter.learner.updates,
                entropy=float(entropy(logits.float()).nanmean()),
                drift=adapter.stats.mean_drift,
                turnover=self._turnover(adapter),
            )
            self.on_event(adapter, updated)
        self.updates = adapter.learner.updates  # a rollback or a reset lowers it

    def on_event(self, adapter: AdapterLike, event: object) -> None:
        """Pass an event on."""
        if not isinstance(event, Event):
            return
        if isinstance(event, Restarted):
            self.updates = self.clock = 0
        try:
            self.callback(event)
        except Exception:
            logger.exception("a listener failed on %s; the adapter continues", type(event).__name__)

    def _turnover(self, adapter: AdapterLike) -> float | None:
        memory = adapter.learner.memory()
        if memory is None:
            return None
        fresh = memory.births[: memory.size] > self.clock
        self.clock = memory.clock
        return float(fresh.mean()) if memory.size else 0.0


class Prometheus:
    """Events as metrics: the newest numbers, and how often a guard has fired. Needs the extra `prometheus`.

    `adapter.listen(prometheus)`, then serve `prometheus.text()` under /metrics; or pass the registry that your service
    exposes already.
    """

    def __init__(self, registry: Any = None) -> None:
        self._client = require("prometheus_client", "prometheus")
        self.registry = registry or self._client.CollectorRegistry()
        gauge = partial(self._client.Gauge, registry=self.registry)
        self._gauges = {name: gauge(f"resitta_{name}", text) for name, text in GAUGES.items()}
        self._shadow: dict[str, Any] = {}
        fired = "How often a guard has fired"
        self._fired = self._client.Counter("resitta_guard_fired", fired, ["reason", "action"], registry=self.registry)

    def __call__(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, Updated):
            for name, gauge in self._gauges.items():
                if (value := getattr(event, name)) is not None:
                    gauge.set(value)
        if isinstance(event, GuardFired):
            self._fired.labels(reason=event.reason, action=event.action).inc()
        for name, labels, value in metrics_of(event):
            if name not in self._shadow:  # only those that have values
                self._shadow[name] = self._client.Gauge(name, METRICS[name], list(labels), registry=self.registry)
            (self._shadow[name].labels(**labels) if labels else self._shadow[name]).set(value)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        lines: bytes = self._client.generate_latest(self.registry)
        return lines.decode()


def numbers_of(event: Event) -> dict[str, float]:
    """Return what an event says in numbers: a point of each curve, by name.

    >>> numbers_of(LabelPriorSwitched(samples=64, on=True))
    {'resitta/label_prior': 1.0}
    """
    match event:
        case Updated():
            found = {f"resitta/{name}": getattr(event, name) for name in ("entropy", "drift", "turnover")}
            return {name: value for name, value in found.items() if value is not None}
        case GuardFired():
            return {f"resitta/guard/{event.reason}": event.value}
        case GuardEnded():
            return {f"resitta/guard/{event.reason}/found": event.found}
        case LabelPriorSwitched():
            return {"resitta/label_prior": float(event.on)}
        case DomainChanged():
            return {"resitta/domain_changes": float(event.changes)}
    return {"/".join((name.replace("_", "/", 2), *labels.values())): value for name, labels, value in metrics_of(event)}


def metrics_of(event: Event) -> Iterator[Metric]:
    """The numbers of an event of the shadow, over the recent window."""
    if isinstance(event, Compared):
        yield from agreement_metrics(event.recent)
    if isinstance(event, Labelled | FellBack | Resumed):
        yield from accuracy_metrics(event.recent)
    if isinstance(event, FellBack | Resumed):
        yield "resitta_falling_back", {}, float(isinstance(event, FellBack))


class TensorBoard:
    """Events as curves over the number of samples, written to a folder. Needs the extra `tensorboard`.

    `adapter.listen(TensorBoard("runs/camera-7"))`, then `tensorboard --logdir runs`.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        require("tensorboard", "tensorboard")
        self.writer: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        """Write one event."""
        for name, value in numbers_of(event).items():
            self.writer.add_scalar(name, value, event.samples)
        if isinstance(event, GuardFired):
            self.writer.add_text("resitta/guard", f"{event.reason} {event.value:.4g}: {event.action}", event.samples)
        if isinstance(event, GuardEnded):
            text = f"{event.reason} has ended: found {event.found} times in {event.lasted} samples"
            self.writer.add_text("resitta/guard", text, event.samples)

    def close(self) -> None:
        """Flush and close the file."""
        self.writer.close()
