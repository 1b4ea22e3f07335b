import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.tools import make_run
from torch import nn

import resitta
import resitta.bench
from resitta.bench.record import Records, RunRecord, environment, load, now, read_json, save, settings_of, write_json
from resitta.errors import BadData, MissingExtra
from resitta.method import COMMON
from resitta.methods import ResiTTA


@pytest.fixture
def record() -> RunRecord:
    return make_run(errors=(10.0, 30.0), samples=20)


def test_a_record_survives_a_file(record: RunRecord, tmp_path: Path) -> None:
    save(tmp_path / "deep" / "run.json", record, environment=environment())
    assert load(tmp_path / "deep" / "run.json") == record
    assert read_json(tmp_path / "deep" / "run.json")["environment"]["torch"]
    assert (record.average, record.images_per_second) == (20.0, 40.0)


def test_nothing_is_left_beside_the_file(record: RunRecord, tmp_path: Path) -> None:
    save(tmp_path / "run.json", record)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": True})
    circular: list[object] = []
    circular.append(circular)
    with pytest.raises(ValueError, match="Circular"):
        write_json(tmp_path / "a.json", circular)
    assert read_json(tmp_path / "a.json") == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no record"),
        ("[]", "is no record of a run"),
        ('{"format": 1, "run": {"method": "tent"}}', "is no record of a run"),
        ('{"format": 99, "run": {}}', "has format 99, this version reads up to 1; upgrade"),
    ],
)
def test_files_that_are_no_records_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BadData, match=message):
        load(tmp_path / "run.json")


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="run.json does not exist"):
        load(tmp_path / "run.json")


def test_settings_are_plain_values() -> None:
    def my_view(images: object) -> object:
        return images

    settings = settings_of(resitta.create("resitta", strong_view=my_view))
    assert json.loads(json.dumps(settings)) == settings
    assert "my_view@" in settings["strong_view"]
    names = {field.name for field in dataclasses.fields(resitta.methods.ResiTTA)}
    assert set(settings) == names - COMMON  # those of every method are kept where they are unusual
    assert settings_of(resitta.create("tent", reset_every=3))["reset_every"] == 3


def test_a_record_carries_all_that_defines_its_run_but_the_seed(record: RunRecord, tmp_path: Path) -> None:
    save(tmp_path / "a.json", record, method="resitta", weights="abc", seed=1, environment={"torch": "2"})
    assert load(tmp_path / "a.json").identity == {"method": "resitta", "weights": "abc"}


def test_a_record_says_when_it_was_made(record: RunRecord, tmp_path: Path) -> None:
    made = dataclasses.replace(record, made=now())
    save(tmp_path / "a.json", made, method="tent")
    found = load(tmp_path / "a.json")
    assert (found.made, found.identity) == (made.made, {"method": "tent"})
    assert read_json(tmp_path / "a.json")["made"].endswith("+00:00")
    assert "made" not in read_json(tmp_path / "a.json")["run"]


def test_records_of_earlier_versions_load_with_what_they_have() -> None:
    paths = sorted((Path(__file__).parents[2] / "benchmarks" / "records").glob("*/*.json"))
    assert len(paths) > 100
    records = [load(path) for path in paths]
    assert all(record.identity["weights"] and record.errors for record in records)


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
