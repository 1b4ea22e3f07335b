"""Events as metrics for Prometheus. Needs the extra `prometheus`."""

from typing import Any

from resitta.errors import require
from resitta.monitor.events.event import Event, GuardFired, Updated

GAUGES = {
    "samples": "Samples learned from so far",
    "updates": "Updates so far; a rollback lowers it",
    "entropy": "Mean entropy of the last batch, in nats",
    "drift": "Mean distance of the statistics from the source",
    "turnover": "Share of the memory that came in with the last update",
}


class Prometheus:
    """Keeps the newest numbers of an adapter, and counts how often a guard has fired, by reason and action.

    `adapter.listen(prometheus)`, then serve `prometheus.text()` under /metrics; or give it the registry that your
    service exposes already.
    """

    def __init__(self, registry: Any = None) -> None:
        self._client = require("prometheus_client", "prometheus")
        self.registry = registry or self._client.CollectorRegistry()
        self._gauges = {
            n: self._client.Gauge(f"resitta_{n}", text, registry=self.registry) for n, text in GAUGES.items()
        }
        fired = "How often a guard has fired"
        self._fired = self._client.Counter("resitta_guard_fired", fired, ["reason", "action"], registry=self.registry)

    def __call__(self, event: Event) -> None:
        """Take the numbers of one event."""
        if isinstance(event, Updated):
            for name, gauge in self._gauges.items():
                if (value := getattr(event, name)) is not None:
                    gauge.set(value)
        if isinstance(event, GuardFired):
            self._fired.labels(reason=event.reason, action=event.action).inc()

    def text(self) -> str:
        """Return all metrics in the text format that Prometheus reads."""
        lines: bytes = self._client.generate_latest(self.registry)
        return lines.decode()
