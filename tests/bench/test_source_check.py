import pytest

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord
from resitta.bench.source_check import gold_check
from resitta.data.corruptions import CORRUPTIONS


def source_run(*errors: float) -> RunRecord:
    return RunRecord(
        method="source",
        settings={},
        seed=1,
        domains=CORRUPTIONS,
        borders=(),
        samples=15,
        errors=errors,
        window=1,
        error_over_time=(),
        entropy_over_time=(),
        drift_at=(),
        drift_over_time=(),
        drift_per_layer={},
        bank_per_class=(),
        ece=0,
        nll=0,
        updates=0,
        seconds=1,
        device_memory_mb=1,
    )


def test_the_papers_own_row_passes() -> None:
    row = PAPER.table1["source"]
    assert gold_check(source_run(*row.errors), row).passed
    nearly = gold_check(source_run(*[error + 0.1 for error in row.errors]), row)
    assert nearly.passed
    assert str(nearly).startswith("Gold check passed")


def test_one_cell_off_fails_loudly_and_is_named() -> None:
    row = PAPER.table1["source"]
    errors = list(row.errors)
    errors[CORRUPTIONS.index("fog")] += 0.3
    verdict = gold_check(source_run(*errors), row)
    assert not verdict.passed
    assert verdict.corruption == "fog"
    assert verdict.ours == pytest.approx(26.3)
    assert "GOLD CHECK FAILED: Source has 26.3 % error on fog, the paper 26.0" in str(verdict)
