import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tools import NEEDS_SOURCE
from torch import nn

import resitta
from resitta.data.datasets import ArrayImages
from resitta.errors import BadSetting
from resitta.models.user_code import load_file

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture
def images() -> Arrays:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (60, 10, 10, 3), np.uint8), np.arange(60) % 5


@pytest.fixture(autouse=True)
def centred(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(NEEDS_SOURCE)
    return f"{tmp_path / 'own.py'}:centred"


def test_clean_images_of_the_bench_are_used_and_said(
    model: nn.Module, images: Arrays, tmp_path: Path, centred: str
) -> None:
    titles: list[str] = []

    def bar(title: str) -> Any:
        titles.append(title)
        return lambda done, total: None

    options: dict[str, Any] = {"corruptions": ["fog"], "source_images": 40, "out": tmp_path / "out", "progress": bar}
    records = resitta.bench.run(model, images, ["source", centred], per_domain=20, **options)
    said = records[1].settings["source"]
    assert said.startswith("<statistics of 40 source images (clean images of the bench) for centred, ")
    assert records.labels == ("source", "centred")
    assert "source data of centred" in titles
    assert json.loads(next((tmp_path / "out").glob("centred-1-*.json")).read_text())["settings"]["source"] == said
    again = resitta.bench.run(model, images, ["source", centred], per_domain=20, **options)
    assert again.kept == (True, True)
    fewer = resitta.bench.run(model, images, [centred], per_domain=20, **options | {"source_images": 20})
    assert fewer.kept == (False,)
    assert fewer[0].identity["settings"] != records[1].identity["settings"]
    assert len(list((tmp_path / "out" / "source").iterdir())) == 2


def test_a_file_or_other_images_are_used_if_given(
    model: nn.Module, images: Arrays, tmp_path: Path, centred: str
) -> None:
    path = tmp_path / "centred.safetensors"
    load_file(tmp_path / "own.py")
    made = resitta.prepare(model, torch.rand(30, 3, 10, 10), "centred", path=path)
    options: dict[str, Any] = {"corruptions": ["fog"]}
    from_file = resitta.bench.run(model, images, [centred], source=path, **options)
    assert from_file[0].settings["source"] == repr(made)
    assert made.digest[:8] in from_file.labels[0]
    others = (images[0][::-1].copy(), images[1])
    from_images = resitta.bench.run(model, images, [centred], source=others, **options)
    assert from_images[0].settings["source"].startswith("<statistics of 60 source images for centred, ")
    of_its_own = resitta.bench.run(
        model, images, [resitta.create("centred", source=torch.rand(9, 3, 10, 10))], **options
    )
    assert of_its_own[0].settings["source"].startswith("<statistics of 9 source images for centred, ")


def test_corrupted_sets_have_no_clean_images(model: nn.Module, images: Arrays, tmp_path: Path, centred: str) -> None:
    np.save(tmp_path / "fog.npy", np.tile(images[0], (5, 1, 1, 1)))
    np.save(tmp_path / "labels.npy", np.tile(images[1], 5))
    said = (
        r"holds only corrupted images; give clean images, .*source= \(--source\), or leave out centred \('source' works"
    )
    with pytest.raises(BadSetting, match=said):
        resitta.bench.run(model, tmp_path, [centred], corruptions=["fog"])
    clean = ArrayImages(*images)
    records = resitta.bench.run(model, tmp_path, [centred], corruptions=["fog"], source=clean)
    assert records[0].settings["source"].startswith("<statistics of 60 source images for centred, ")


def test_images_that_can_be_read_once_serve_all_seeds(model: nn.Module, images: Arrays, tmp_path: Path) -> None:
    load_file(tmp_path / "own.py")
    method = resitta.create("centred", source=iter([torch.rand(9, 3, 10, 10)]))
    records = resitta.bench.run(model, images, [method], corruptions=["fog"], seeds=[1, 2])
    assert len({run.settings["source"] for run in records}) == 1


def test_statistics_are_not_kept_where_code_cannot_be_compared(
    model: nn.Module, images: Arrays, tmp_path: Path, centred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resitta.bench.runner.method_source", lambda _: None)
    resitta.bench.run(model, images, [centred], corruptions=["fog"], out=tmp_path / "out")
    assert not (tmp_path / "out" / "source").exists()


def test_all_methods_are_those_that_can_run_there(model: nn.Module, images: Arrays, tmp_path: Path) -> None:
    load_file(tmp_path / "own.py")
    np.save(tmp_path / "fog.npy", np.tile(images[0], (5, 1, 1, 1)))
    np.save(tmp_path / "labels.npy", np.tile(images[1], 5))
    records = resitta.bench.run(model, tmp_path, ["all"], corruptions=["fog"], per_domain=5)
    found = {record.method for record in records}
    assert "centred" not in found
    assert {"source", "tent", "resitta"} <= found


def test_the_number_of_images_is_checked(model: nn.Module, images: Arrays) -> None:
    with pytest.raises(BadSetting, match="source_images must be a whole number from 1 on, found 0"):
        resitta.bench.run(model, images, source_images=0)


@pytest.mark.slow
def test_statistics_reach_worker_processes(images: Arrays, tmp_path: Path, centred: str, one_thread: None) -> None:
    (tmp_path / "make.py").write_text("from resitta.conformance import tiny_network as make")
    options: dict[str, Any] = {"corruptions": ["fog"], "seeds": [1, 2], "model": f"{tmp_path / 'make.py'}:make"}
    here = resitta.bench.run(images=images, methods=[centred], **options)
    there = resitta.bench.run(images=images, methods=[centred], engine="processes", workers=2, **options)
    assert [run.errors for run in there] == [run.errors for run in here]
    assert [run.settings for run in there] == [run.settings for run in here]
