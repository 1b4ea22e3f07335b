"""Many streams on one model: `resitta.fleet`."""

from resitta.fleets.api import Fleet, fleet
from resitta.fleets.records import StreamEvent, StreamStats
from resitta.fleets.stream import Stream

__all__ = ["Fleet", "Stream", "StreamEvent", "StreamStats", "fleet"]
