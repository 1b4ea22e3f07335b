import numpy as np
import pytest
import torch

from resitta.bench.metrics import Metrics, calibration_error


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
