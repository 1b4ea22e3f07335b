import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from resitta.bench.protocol import Protocol
from resitta.bench.record import RunRecord


@pytest.fixture
def make_run() -> Callable[..., RunRecord]:
    """A factory of records: two domains of 100 samples unless told otherwise."""

    def make(method: str = "tent", errors: tuple[float, ...] = (10.0, 20.0), **changes: Any) -> RunRecord:
        values: dict[str, Any] = {
            "method": method,
            "settings": {"lr": 0.001},
            "seed": 0,
            "domains": ("snow", "fog")[: len(errors)],
            "samples": 200,
            "errors": errors,
            "window": 20,
            "error_over_time": tuple(float(10 + i) for i in range(10)),
            "entropy_over_time": (0.5,) * 10,
            "drift_at": (64, 128, 192),
            "drift_over_time": (0.1, 0.2, 0.3),
            "drift_per_layer": {"bn1": 0.2, "bn2": 0.4},
            "bank_per_class": (3, 0, 5),
            "ece": 0.125,
            "nll": 0.75,
            "updates": 3,
            "seconds": 0.5,
            "device_memory_mb": 64.0,
        }
        values.update(changes)
        count, samples = len(values["domains"]), values["samples"]
        values.setdefault("borders", tuple(place * samples // count for place in range(count)))
        return RunRecord(**values)

    return make


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
