"""The gold check: Source needs no adaptation, so on public weights and data it must equal the paper, cell by cell."""

from dataclasses import dataclass

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord

TOLERANCE = 0.1


@dataclass(frozen=True)
class GoldCheck:
    """The cell of the Source row that lies farthest from the paper's."""

    corruption: str
    ours: float
    paper: float

    @property
    def passed(self) -> bool:
        """Whether every cell agrees up to the rounding of print."""
        return abs(self.ours - self.paper) <= TOLERANCE + 1e-9

    def __str__(self) -> str:
        if self.passed:
            return f"Gold check passed: the Source row equals the paper's within {TOLERANCE}."
        return (
            f"GOLD CHECK FAILED: Source has {self.ours:.1f} % error on {self.corruption}, the paper {self.paper:.1f}. "
            "Weights, data or preprocessing are not the public ones, so this run does not reproduce the table: check "
            "the checkpoint, the normalisation and the data before comparing methods with the paper."
        )


def gold_check(source: RunRecord, paper: PaperRow) -> GoldCheck:
    """Compare a run of Source with its row in the paper."""
    cells = [(name, error, paper[name]) for name, error in zip(source.domains, source.errors, strict=True)]
    return GoldCheck(*max(cells, key=lambda cell: abs(cell[1] - cell[2])))
