"""Prometheus metrics: the service's counters, collected on each scrape, and the latency of requests."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from resitta.monitor.shadow.records import METRICS, ShadowStats, shadow_metrics
from resitta.serve.service import Service
from resitta.serve.stream_rows import StreamRow, owner

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
NATS = (0.1, 0.3, 1, 2, 4, 8)
MOST_STREAMS = 100
"""Streams of a fleet with series of their own."""
COUNTED = {
    "learned": "Images learned from.",
    "dropped": "Images predicted but not learned from, because the learning queue was full.",
    "skipped": "Images predicted but not learned from, because learning was paused or reset.",
    "screened": "Images predicted but not learned from, because out of distribution, or from a muted client.",
}


class ServiceCollector(Collector):
    """Collects metrics from the service's state."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the current value of every metric of the service."""
        service, report = self.service, self.service.writer.report()
        counters, stats = report.counters, report.stats
        yield CounterMetricFamily("resitta_images_predicted", "Images predicted.", value=service.predicted)
        for name, text in COUNTED.items():
            yield CounterMetricFamily(f"resitta_images_{name}", text, value=getattr(counters, name))
        yield CounterMetricFamily("resitta_failed_saves", "Snapshots not written.", value=report.failed_saves)
        fired = CounterMetricFamily(
            "resitta_guard_fired", "Images a guard kept out (unknown), or steps it acted on.", labels=["reason"]
        )
        for reason, times in report.guard_fired.items():
            fired.add_metric([reason], times)
        yield fired
        gauges = {
            "resitta_waiting_to_learn": ("Images in the learning queue.", counters.waiting),
            "resitta_waiting_for_prediction": ("Images in the request queue.", service.waiting),
            "resitta_learning": ("1 while learning, 0 while paused.", not report.paused),
            "resitta_state_version": ("The version of the state that predicts.", report.version),
            "resitta_updates": ("Updates since the source model.", stats.updates),
            "resitta_clients_muted": ("Clients that are not learned from.", len(report.muted)),
            "resitta_clients_harmful": ("Muted clients that move the predictions of others.", len(report.harmful)),
            "resitta_bank_samples": ("Samples in the memory.", 0 if stats.bank is None else stats.bank.occupancy),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=float(value))
        drift = GaugeMetricFamily("resitta_drift", "W2 of a layer's statistics to the source's.", labels=["layer"])
        for layer, distance in stats.drift.items():
            drift.add_metric([layer], distance)
        yield drift
        if stats.shadow is not None:
            yield from shadow_families(stats.shadow)
        if (rows := service.streams()) is not None:
            yield from stream_families(rows)


def stream_families(rows: Sequence[StreamRow]) -> Iterator[Metric]:
    """The metrics of a fleet.

    Only streams that clients with the token have named have series of their own, `MOST_STREAMS` at most: a database of
    metrics keeps every name for good, and clients without the token could invent any number of them.
    """
    counted = {
        "resitta_streams": ("Streams, in memory or in the folder.", len(rows)),
        "resitta_streams_in_memory": ("Streams in memory.", sum(row.in_memory for row in rows)),
        "resitta_streams_paused": ("Streams that are not learned from.", sum(not row.learning for row in rows)),
    }
    for name, (text, value) in counted.items():
        yield GaugeMetricFamily(name, text, value=value)
    samples = CounterMetricFamily("resitta_stream_images", "Images learned from.", labels=["stream"])
    drift = GaugeMetricFamily("resitta_stream_drift", "Drift, in units of the source's spread.", labels=["stream"])
    entropy = GaugeMetricFamily("resitta_stream_entropy_nats", "Mean entropy of all predictions.", labels=["stream"])
    for row in [row for row in rows if not owner(row.name)][:MOST_STREAMS]:
        for family, number in ((samples, row.samples), (drift, row.drift), (entropy, row.mean_entropy)):
            if number is not None:
                family.add_metric([row.name], number)
    yield from (samples, drift, entropy)


def shadow_families(shadow: ShadowStats) -> Iterator[Metric]:
    """The metrics of the comparison with the source."""
    feedback, families = shadow.feedback, dict[str, GaugeMetricFamily]()
    counted = {
        "resitta_shadow_compared": ("Images compared with the source.", shadow.running and shadow.running.compared),
        "resitta_feedback_used": ("Labelled images.", feedback.running and feedback.running.labelled),
        "resitta_feedback_not_compared": ("Labels of images that were not compared.", feedback.not_compared),
        "resitta_feedback_unknown": ("Labels with ids that are not known.", feedback.unknown),
        "resitta_fell_back": ("How often the source began to answer.", shadow.fell_back),
    }
    for name, (text, value) in counted.items():
        yield CounterMetricFamily(name, text, value=value or 0)
    for name, labels, number in shadow_metrics(shadow):
        families.setdefault(name, GaugeMetricFamily(name, METRICS[name], labels=list(labels)))
        families[name].add_metric(list(labels.values()), number)
    yield from families.values()


class ServiceMetrics:
    """The metrics of one service."""

    def __init__(self, service: Service) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(ServiceCollector(service))
        self.seconds = Histogram("resitta_predict_seconds", "Latency of requests.", buckets=SECONDS, registry=registry)
        self.entropy = Histogram("resitta_entropy_nats", "Entropy of predictions.", buckets=NATS, registry=registry)
        self.refusals = Counter("resitta_refused", "Requests refused, by status.", ["status"], registry=registry)
        self.cut = Counter("resitta_connections_cut", "Connections cut, by reason.", ["reason"], registry=registry)
        self.killed = Counter("resitta_decoders_killed", "Decoder processes ended by a request.", registry=registry)

    def observe(self, seconds: float, entropies: Iterable[float]) -> None:
        """Record an answer."""
        self.seconds.observe(seconds)
        for value in entropies:
            self.entropy.observe(value)

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
