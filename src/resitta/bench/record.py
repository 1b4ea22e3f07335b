"""The record of a run: everything that was measured, as JSON that later versions can read; and lists of them."""

import dataclasses
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from resitta.bench.source_digest import described
from resitta.checkpoint import io
from resitta.checkpoint.atomic_write import write_atomically
from resitta.errors import BadData, require
from resitta.method import Method

FORMAT = 1
NOT_IDENTITY = ("format", "made", "seed", "environment", "run")
"""What a record's file holds beside the identity of its run."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One method on one stream. Errors are per cent; traces hold one value per `window` samples.

    `borders` holds the sample at which each domain begins; it is empty when domains are mixed. `device_memory_mb` is
    the peak memory of an accelerator, `host_memory_mb` the growth of the process beyond the model and the open data
    (None if not measured). `identity` is everything that defines the run except its seed: protocol, method, settings,
    weights, images and so on; only runs with equal identities may be averaged. It is empty for a run that was not read
    from a file. `made` is when the run ended, in UTC; older files lack it.
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
        values["settings"] = io.present_names(values["method"], values["settings"])
        return RunRecord(**values, identity=identity_in(content), made=content.get("made", ""))
    except (KeyError, TypeError) as error:
        raise BadData(f"{path} is no record of a run ({error}); remove it and run again") from error


def identity_in(content: dict[str, Any]) -> dict[str, Any]:
    """The part of a record's file that defines the run, without its seed."""
    return {key: value for key, value in content.items() if key not in NOT_IDENTITY}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


@dataclass(frozen=True)
class Records(Sequence[RunRecord]):
    """The records of a bench, one per method and seed. `print(records.table())` shows the errors.

    `labels` name the method of each record with the settings that are not its defaults. `kept` says which of them come
    from an earlier run, and `warning` what makes all of them doubtful, if anything does.
    """

    runs: tuple[RunRecord, ...]
    labels: tuple[str, ...]
    kept: tuple[bool, ...] = field(compare=False)
    warning: str = ""

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, index: int) -> RunRecord: ...

    @overload
    def __getitem__(self, index: slice) -> "Records": ...

    def __getitem__(self, index: int | slice) -> "RunRecord | Records":
        if isinstance(index, slice):
            return Records(self.runs[index], self.labels[index], self.kept[index], self.warning)
        return self.runs[index]

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.runs)

    def __repr__(self) -> str:
        if not self.runs:
            return "<no records>"
        methods = ", ".join(dict.fromkeys(self.labels))
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for run in self.runs))
        notes = [f"{sum(self.kept)} kept from earlier runs"] if any(self.kept) else []
        ending = f" ({'; '.join(filter(None, [*notes, self.warning]))})" if notes or self.warning else ""
        return f"<{len(self)} records: {methods}; seeds {seeds}{ending}>\n{self.table()}"

    def table(self) -> str:
        """The errors in per cent as text, the mean and standard deviation over the seeds of each method."""
        from resitta.report.formats import as_text  # noqa: PLC0415  (the report builds on this package)
        from resitta.report.table import error_table  # noqa: PLC0415

        return as_text(error_table(self.runs))

    def to_pandas(self) -> Any:
        """One row per run and domain, in the order of the stream; what belongs to a whole run is repeated.

        Errors, `average` among them, are per cent. Needs pandas.
        """
        pandas = require("pandas", "pandas")
        return pandas.DataFrame([row for number in range(len(self)) for row in self._rows(number)])

    def kept_lines(self) -> list[str]:
        """A sentence for each record that comes from an earlier run."""
        which = [(label, run) for label, run, old in zip(self.labels, self.runs, self.kept, strict=True) if old]
        return [f"{label}, seed {run.seed}: kept from an earlier run, {_date(run.made)}" for label, run in which]

    def _rows(self, number: int) -> Iterator[dict[str, Any]]:
        run, label = self.runs[number], self.labels[number]
        protocol, about = run.identity.get("protocol", {}), run.identity
        first = {key: about.get(key) for key in ("model", "data")} | {"method": run.method, "label": label}
        how = {key: protocol.get(key) for key in ("order", "severity", "batch_size")}
        whole = {"average": run.average, "ece": run.ece, "nll": run.nll, "updates": run.updates}
        cost = {"samples": run.samples, "seconds": run.seconds, "made": run.made, "kept": self.kept[number]}
        for position, (domain, error) in enumerate(zip(run.domains, run.errors, strict=True)):
            here = {"seed": run.seed, "position": position, "domain": domain, "error": error}
            yield first | how | here | whole | cost


def _date(made: str) -> str:
    """A time in words.

    >>> _date("2026-01-31T12:05:07+00:00")
    '2026-01-31 12:05 UTC'
    """
    return f"{datetime.fromisoformat(made):%Y-%m-%d %H:%M} UTC" if made else "date unknown"
