import dataclasses
import json
from pathlib import Path

import pytest

import resitta
from resitta.bench.record import RunRecord, environment, load, now, read_json, save, settings_of, write_json
from resitta.errors import BadData


@pytest.fixture
def record() -> RunRecord:
    return RunRecord(
        method="tent",
        settings={"lr": 0.001},
        seed=1,
        domains=("fog", "snow"),
        borders=(0, 10),
        samples=20,
        errors=(10.0, 30.0),
        window=10,
        error_over_time=(10.0, 30.0),
        entropy_over_time=(0.5, 0.6),
        drift_at=(10, 20),
        drift_over_time=(0.0, 0.1),
        drift_per_layer={"bn1": 0.1},
        bank_per_class=(),
        ece=0.1,
        nll=0.5,
        updates=2,
        seconds=0.5,
        device_memory_mb=100.0,
    )


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
    assert set(settings) == {field.name for field in dataclasses.fields(resitta.methods.ResiTTA)}


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
