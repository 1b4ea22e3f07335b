import sys
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import resitta.bench
from resitta.bench.records import Records
from resitta.errors import MissingExtra
from resitta.methods import ResiTTA


@pytest.fixture
def records(model: nn.Module) -> Records:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 10, 10, 3), np.uint8), np.arange(60) % 5
    options = {"seeds": [1, 2], "corruptions": ["fog", "snow"], "order": "iid"}
    return resitta.bench.run(model, images, ["source", ResiTTA(eta=0.05)], **options)  # type: ignore[arg-type]


def test_records_are_a_sequence(records: Records) -> None:
    assert len(records) == 4
    assert [(run.method, run.seed) for run in records] == [("source", 1), ("source", 2), ("resitta", 1), ("resitta", 2)]
    assert records[-1] is list(records)[-1]
    assert isinstance(records[1:], Records)
    assert records[1:].labels == ("source", "resitta, eta=0.05", "resitta, eta=0.05")
    assert records[0] in records


def test_they_show_what_they_are(records: Records) -> None:
    assert repr(records).startswith("<4 records: source, resitta, eta=0.05; seeds 1, 2>\n")
    assert records.table() in repr(records)
    assert "fog" in records.table()
    assert f"{np.mean([run.average for run in records[:2]]):.1f}" in records.table()
    kept = Records(records.runs, records.labels, (True, False, False, False), "Random weights.")
    assert "seeds 1, 2 (1 kept from earlier runs; Random weights.)>" in repr(kept)
    (line,) = kept.kept_lines()
    assert line.startswith("source, seed 1: kept from an earlier run, 20")
    assert line.endswith(" UTC")
    assert repr(records[:0]) == "<no records>"


class Frame:
    """Stands in for pandas' data frame: it keeps the rows it was made of."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows = rows


def test_a_data_frame_has_a_row_per_run_and_domain(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    rows = records.to_pandas().rows
    assert len(rows) == 8
    assert len({tuple(row) for row in rows}) == 1, "every row has every column"
    assert [row["error"] for row in rows[:2]] == list(records[0].errors)
    wanted = {"label": "resitta, eta=0.05", "seed": 1, "domain": "snow", "position": 1, "order": "iid", "severity": 5}
    assert wanted.items() <= rows[5].items()
    assert rows[5]["average"] == records[2].average
    assert rows[5]["nll"] == records[2].nll


def test_a_real_data_frame(records: Records) -> None:
    pytest.importorskip("pandas")
    table = records.to_pandas().groupby(["label", "domain"])["error"].mean()
    assert table["source", "fog"] == pytest.approx(np.mean([run.errors[0] for run in records[:2]]))


def test_without_pandas_the_remedy_is_named(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pandas is not installed"):
        records.to_pandas()
