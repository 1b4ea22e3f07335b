from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resitta.bench.record import RunRecord, load, save
from resitta.errors import BadData
from resitta.report.groups import grouped
from resitta.report.reading import environment_of, paths_of, read_folders, record_paths

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


@pytest.fixture
def write(make_identity: MakeIdentity, tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, run: RunRecord, **changes: Any) -> Path:
        save(tmp_path / name, run, seed=run.seed, environment={"torch": "2"}, **make_identity(**changes))
        return (tmp_path / name).parent

    return make


def test_a_folder_of_several_experiments(write: Callable[..., Path], make_run: MakeRun) -> None:
    for seed in (1, 2):
        folder = write(f"a/{seed}.json", make_run(seed=seed))
    write("a/mild.json", make_run(errors=(1.0, 2.0), seed=1), severity=3)
    groups = grouped(read_folders([folder]))
    assert [(group.label, group.average) for group in groups] == [
        ("TENT (severity 5)", 15.0),
        ("TENT (severity 3)", 1.5),
    ]


def test_folders_stand_side_by_side(write: Callable[..., Path], make_run: MakeRun) -> None:
    before = write("before/1.json", make_run(seed=1))
    after = write("after/1.json", make_run(errors=(1.0, 2.0), seed=1))
    assert [group.label for group in grouped(read_folders([before, after]))] == ["TENT (before)", "TENT (after)"]
    copy = write("copy/1.json", make_run(seed=1))
    assert [(g.label, len(g.runs)) for g in grouped(read_folders([before, copy]))] == [("TENT", 1)]
    more = write("more/2.json", make_run(seed=2))
    assert [(g.label, len(g.runs)) for g in grouped(read_folders([before, more]))] == [("TENT", 2)]


def test_folders_of_the_same_name_are_told_apart(write: Callable[..., Path], make_run: MakeRun, tmp_path: Path) -> None:
    folders = [write(f"{name}/out/1.json", make_run(errors=(e, e))) for name, e in (("a", 1.0), ("b", 2.0))]
    labels = [group.label for group in grouped(read_folders(folders))]
    assert labels == [f"TENT ({tmp_path}/a/out)", f"TENT ({tmp_path}/b/out)"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="holds no records"):
        read_folders([tmp_path])


def test_the_environment_is_that_of_the_records(write: Callable[..., Path], make_run: MakeRun) -> None:
    folder = write("a/1.json", make_run(seed=1))
    save(folder / "2.json", make_run(seed=2), environment={"torch": "3", "device": "cuda"})
    (folder / "notes.json").write_text("[]")
    runs = [load(folder / "1.json"), load(folder / "2.json")]
    paths = paths_of(runs, folder)
    assert [path.name for path in paths] == ["1.json", "2.json"]
    assert environment_of(paths) == {"torch": "2 or 3", "device": "cuda"}
    assert paths_of([replace(runs[0], seed=7)], folder) == []
    assert len(record_paths(folder)) == 3
