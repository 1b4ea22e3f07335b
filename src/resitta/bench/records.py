"""What a bench returns: its records in order, as a table or a data frame."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, overload

from resitta.bench.record import RunRecord
from resitta.errors import require


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
        from resitta.report.tables import error_table  # noqa: PLC0415

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
    """A time as people write it.

    >>> _date("2026-01-31T12:05:07+00:00")
    '2026-01-31 12:05 UTC'
    """
    return f"{datetime.fromisoformat(made):%Y-%m-%d %H:%M} UTC" if made else "date unknown"
