"""Rows and events of a fleet."""

from tests.conftest import small_network, stream

import resitta
from resitta.fleets import StreamEvent, StreamStats
from resitta.monitor.events import Restarted


def test_a_stream_found_in_the_folder_has_a_row_without_numbers(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with resitta.fleet(small_network(), "resitta", folder=tmp_path) as fleet:
        fleet["a"](stream(8))
    again = resitta.fleet(small_network(), "resitta", folder=tmp_path)
    assert again.stats == {"a": StreamStats(in_memory=False)}
    assert again["a"].stats.samples == 8
    assert again.stats["a"].samples == 8


def test_a_reset_is_reported_with_the_name() -> None:
    heard: list[StreamEvent] = []
    fleet = resitta.fleet(small_network(), "resitta")
    fleet.listen(heard.append)
    fleet["a"](stream(8))
    fleet["a"].reset()
    assert heard == [StreamEvent(stream="a", event=Restarted(samples=0))]
