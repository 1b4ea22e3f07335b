"""Fetch the public corrupted data sets: resumed, verified and safely unpacked."""

from resitta.streams.fetch.archives import DATA_SETS, Archive, DataSet
from resitta.streams.fetch.download import Patience, Progress
from resitta.streams.fetch.public import fetch

__all__ = ["DATA_SETS", "Archive", "DataSet", "Patience", "Progress", "fetch"]
