import numpy as np
import pytest
import torch
from torch import nn

import resitta
from resitta.bench.loop import Metrics, calibration_error, run_stream
from resitta.data.datasets import ArrayImages
from resitta.data.orders import dirichlet
from resitta.data.streams import Stream, continual


@pytest.fixture
def stream() -> Stream:
    rng = np.random.default_rng(0)
    sets = [ArrayImages(rng.integers(0, 256, (n, 3, 10, 10), np.uint8), np.arange(n) % 5) for n in (150, 90)]
    return continual(["fog", "snow"], sets, dirichlet, rng)


def test_errors_are_those_of_a_plain_loop(model: nn.Module, stream: Stream) -> None:
    record = run_stream(resitta.adapt(model, "resitta", seed=1), stream, batch_size=32)
    adapter, wrong = resitta.adapt(model, "resitta", seed=1), np.zeros(2)
    for batch in stream.batches(32):
        missed = adapter(batch.images).argmax(1).numpy() != batch.labels
        np.add.at(wrong, batch.domains, missed)
    assert record.errors == pytest.approx(100 * wrong / [150, 90])
    assert record.average == pytest.approx(np.mean(record.errors))
    assert (record.samples, record.updates, record.seed) == (240, 3, 1)
    assert np.mean(record.error_over_time) == pytest.approx(100 * wrong.sum() / 240)


def test_the_record_describes_the_run(model: nn.Module, stream: Stream) -> None:
    done: list[int] = []
    adapter = resitta.adapt(model, "resitta", eta=0.02)
    record = run_stream(adapter, stream, points=10, progress=lambda at, _: done.append(at))
    assert done == [64, 128, 192, 240]
    assert record.settings["eta"] == 0.02
    assert record.settings["strong_view"] is None
    assert len(record.error_over_time) == 10
    assert sum(record.bank_per_class) == 64
    assert record.borders == (0, 150)
    assert set(record.drift_per_layer) == {"1", "4"}
    assert record.drift_over_time[-1] > 0
    assert record.seconds > 0
    assert record.images_per_second == pytest.approx(240 / record.seconds)
    assert record.device_memory_mb == 0
    assert record.host_memory_mb is not None
    assert 0 <= record.host_memory_mb < 500


@pytest.fixture
def metrics() -> Metrics:
    collected = Metrics()
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    labels, domains = np.array([0, 1, 1, 1, 0]), np.array([0, 0, 0, 2, 2])
    collected.add(logits[:2], labels[:2], domains[:2])
    collected.add(logits[2:], labels[2:], domains[2:])
    return collected


def test_errors_are_per_domain_and_an_empty_domain_counts_as_zero(metrics: Metrics) -> None:
    assert metrics.domain_errors(3) == pytest.approx([100 / 3, 0, 0])


def test_errors_over_time_are_means_of_windows(metrics: Metrics) -> None:
    over_time = metrics.over_time(2)
    assert over_time["error"] == [0, 50, 0]
    p = torch.tensor([3.0, 0.0]).softmax(0)
    assert over_time["entropy"] == pytest.approx([float(-(p * p.log()).sum())] * 3, abs=1e-4)


def test_likelihood_and_calibration_by_hand(metrics: Metrics) -> None:
    p = float(torch.tensor([3.0, 0.0]).softmax(0)[0])
    assert metrics.nll() == pytest.approx((-4 * np.log(p) - np.log(1 - p)) / 5, rel=1e-5)
    assert metrics.ece() == pytest.approx(abs(p - 0.8), rel=1e-4)


def test_calibration_against_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.6
    expected = 0.0
    for low in range(15):
        inside = (confidence >= low / 15) & (confidence < (low + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert calibration_error(confidence, correct) == pytest.approx(expected)
