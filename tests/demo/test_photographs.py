import hashlib
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.demo.photographs import CLASSES, FOLDER, PHOTOGRAPHS, load_photographs, source_network
from resitta.errors import BadSetting

ROOT = Path(__file__).parents[2]
DIGEST = "988e9eb8701453490f52ecf39410b2fca63413b6c40035c6c2a231268293b64d"
"""Of all pixels and labels."""


def test_the_photographs_are_2000_balanced_and_exact() -> None:
    images = load_photographs()
    pixels = images.read(range(len(images)))
    assert pixels.shape == (2000, 3, 32, 32)
    assert np.bincount(images.labels).tolist() == [200] * len(CLASSES)
    assert len(torch.unique(pixels.flatten(1), dim=0)) == 2000, "no image is there twice"
    assert hashlib.sha256(pixels.numpy().tobytes() + images.labels.tobytes()).hexdigest() == DIGEST


def test_the_network_knows_them() -> None:
    images, network = load_photographs(), source_network()
    with torch.no_grad():
        found = [network(part.float() / 255).argmax(1) for part in torch.split(images.read(range(2000)), 100)]
    error = 100 * (torch.cat(found).numpy() != images.labels).mean()
    assert error == pytest.approx(8.2, abs=0.06), "the clean error that NOTICE states"
    assert "corruption: 8.2 %" in (ROOT / "NOTICE").read_text("utf-8")


def test_the_data_is_small_and_goes_with_the_package() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 4_500_000
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "demo/photographs/*" in project["tool"]["setuptools"]["package-data"]["resitta"]
    assert "NOTICE" in project["project"]["license-files"]
    notice = " ".join((ROOT / "NOTICE").read_text("utf-8").split())
    for words in ("Alex Krizhevsky", "Learning Multiple Layers of Features from Tiny Images. 2009", "every fifth"):
        assert words in notice


def test_they_are_those_of_the_testbed(beds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import demo_photographs

    monkeypatch.setattr(sys, "argv", ["demo_photographs.py", "--check", "--beds", str(beds)])
    monkeypatch.setattr(demo_photographs, "clean_error", lambda images: 0.0)
    assert demo_photographs.main() == 0
    monkeypatch.setattr(demo_photographs, "load_photographs", shifted)
    assert demo_photographs.main() == 1, "the check can fail"


def shifted() -> object:
    images = load_photographs()
    images._pixels = np.roll(images._pixels, 1, axis=0)
    return images


def test_decoding_takes_less_than_a_second() -> None:
    start = time.process_time()
    load_photographs()
    assert time.process_time() - start < 1


def test_there_is_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"comes trained; leave out --retrain, or run `resitta demo digits --retrain`"):
        PHOTOGRAPHS.open(tmp_path, samples=10, seed=1, retrain=True, bar=lambda _: lambda _done, _total: None)
