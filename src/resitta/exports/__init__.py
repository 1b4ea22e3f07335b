"""Models in files that run without this library: `resitta.export`."""

from resitta.exports.api import Exported, export

__all__ = ["Exported", "export"]
