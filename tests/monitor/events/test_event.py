"""Events are frozen records."""

import dataclasses
from typing import get_args

import pytest

from resitta.monitor.events import Event, Restarted


def test_events_are_frozen_keywords() -> None:
    for kind in get_args(Event):
        assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Restarted(samples=0).samples = 1  # type: ignore[misc]
