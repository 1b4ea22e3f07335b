"""Fetch the public corrupted data sets: resumed, verified and safely unpacked."""

from resitta.data.download.public import DATA_SETS, Archive, DataSet, fetch
from resitta.data.download.transfer import Patience, Progress

__all__ = ["DATA_SETS", "Archive", "DataSet", "Patience", "Progress", "fetch"]
