import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from tests.tools import make_run

from resitta.bench.protocol import Protocol
from resitta.bench.record import RunRecord


@pytest.fixture(name="make_run")
def make_run_fixture() -> Callable[..., RunRecord]:
    """A factory of records."""
    return make_run


@pytest.fixture
def make_identity() -> Callable[..., dict[str, Any]]:
    """A factory of identities as a file holds them: the paper's CIFAR-10 task unless told otherwise."""

    def make(**changes: Any) -> dict[str, Any]:
        protocol = {key: changes.pop(key) for key in list(changes) if key in Protocol.__dataclass_fields__}
        values: dict[str, Any] = {
            "protocol": json.loads(json.dumps(asdict(Protocol(**protocol)))),
            "weights": "5191db9e92f4",
            "images": ["7b5a989dc0c5", "714460e9d3c1"],
            "model": "wrn28x10",
            "checkpoint": "Standard.pt",
            "data": "CIFAR-10-C",
        }
        return values | changes

    return make
