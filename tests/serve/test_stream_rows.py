from pathlib import Path
from typing import Any

import pytest
from tests.serve.fleets import fleet_service, send
from tests.serve.helpers import images

from resitta.serve.stream_rows import StreamRow


def test_totals_are_sums_and_a_stream_that_left_memory_keeps_its_numbers(tmp_path: Path) -> None:
    with fleet_service(tmp_path, max_streams=1) as service:
        send(service, "a", images(4))
        entropies = [service.fleet["a"].adapter.mean_entropy]
        send(service, "b", images(12, seed=1))
        entropies.append(service.fleet["b"].adapter.mean_entropy)
        drift = service.fleet["b"].stats.drift
        total, [first, second] = service.learner.rows.total(), service.streams()
        assert (total.samples, total.updates) == (16, 1)
        assert total.mean_entropy == pytest.approx((4 * entropies[0] + 12 * entropies[1]) / 16)
        assert total.drift == pytest.approx({layer: distance / 2 for layer, distance in drift.items()})
        assert all(drift.values())
        assert (first.samples, first.in_memory, second.in_memory) == (4, False, True)
    with fleet_service(tmp_path, max_streams=1) as again:
        first, second = again.streams()
        assert (first.samples, first.in_memory) == (4, True), "one is read at the start, to check the folder"
        unknown: dict[str, Any] = dict.fromkeys(("samples", "updates", "mean_entropy", "drift"))
        assert second == StreamRow(name="b", waiting=0, learning=True, in_memory=False, **unknown)
