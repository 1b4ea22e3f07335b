"""The record of a run: everything that was measured, as JSON that a later version can still read."""

import dataclasses
import json
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resitta.bench.sources import described
from resitta.checkpoint import io
from resitta.checkpoint.atomic_write import write_atomically
from resitta.errors import BadData
from resitta.method import Method

FORMAT = 1
NOT_IDENTITY = ("format", "made", "seed", "environment", "run")
"""What a record's file holds beside the identity of its run."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One method on one stream. Errors are per cent; traces hold one value per `window` samples.

    `borders` holds the sample at which each domain begins; it is empty when domains are mixed. `device_memory_mb` is
    the peak of an accelerator's memory, `host_memory_mb` what the process came to hold beyond the model and the open
    data (None where it was not measured). `identity` is everything that defines the run except its seed: protocol,
    method, settings, weights, images and so on; runs may be averaged only where it is equal. It is empty for a run
    that was not read from a file. `made` is when the run ended, in UTC; older files do not say.
    """

    method: str
    settings: dict[str, Any]
    seed: int
    domains: tuple[str, ...]
    borders: tuple[int, ...]
    samples: int
    errors: tuple[float, ...]
    window: int
    error_over_time: tuple[float, ...]
    entropy_over_time: tuple[float, ...]
    drift_at: tuple[int, ...]
    drift_over_time: tuple[float, ...]
    drift_per_layer: dict[str, float]
    bank_per_class: tuple[int, ...]
    ece: float
    nll: float
    updates: int
    seconds: float
    device_memory_mb: float
    host_memory_mb: float | None = None
    title: str = ""  # the method's name in tables, kept here since its class may not be registered where it is read
    identity: dict[str, Any] = field(default_factory=dict)
    made: str = field(default="", compare=False)

    @property
    def average(self) -> float:
        """The mean of the errors over the domains, the paper's Avg."""
        return sum(self.errors) / len(self.errors)

    @property
    def images_per_second(self) -> float:
        """Throughput of the adapter alone, without reading images."""
        return self.samples / self.seconds if self.seconds else 0.0


def settings_of(method: Method) -> dict[str, Any]:
    """The settings of a method as plain JSON values; functions by their name and a digest of their source."""
    return {name: described(value) for name, value in io.settings_of(method).items()}


def now() -> str:
    """The time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(device: torch.device | str = "cpu") -> dict[str, str]:
    """The versions and the hardware a run was made with."""
    import resitta  # noqa: PLC0415  (the version lives in the package itself)

    device = torch.device(device)
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "resitta": resitta.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type}: {chip}",
        "threads": str(torch.get_num_threads()),
    }


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=1, default=_plain).encode())


def read_json(path: Path) -> Any:
    """Read a file that `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadData(f"{path} does not exist; check the path") from error
    except (OSError, ValueError) as error:
        raise BadData(f"{path} is no record ({error}); remove it and run again") from error


def save(path: Path, record: RunRecord, **context: Any) -> None:
    """Write a record with whatever defines the run beside it."""
    run = dataclasses.asdict(record)
    del run["identity"]  # it is the context
    write_json(path, {"format": FORMAT, "made": run.pop("made"), **context, "run": run})


def load(path: Path) -> RunRecord:
    """Read a record."""
    content = read_json(path)
    try:
        found = content["format"]
        if found > FORMAT:
            raise BadData(f"{path} has format {found}, this version reads up to {FORMAT}; upgrade resitta")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content["run"].items()}
        values["settings"] = io.renamed(values["settings"])
        return RunRecord(**values, identity=identity_in(content), made=content.get("made", ""))
    except (KeyError, TypeError) as error:
        raise BadData(f"{path} is no record of a run ({error}); remove it and run again") from error


def identity_in(content: dict[str, Any]) -> dict[str, Any]:
    """The part of a record's file that defines the run, without its seed."""
    return {key: value for key, value in content.items() if key not in NOT_IDENTITY}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
