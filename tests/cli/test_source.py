from pathlib import Path

import numpy as np
import pytest
from tests.tools import NEEDS_SOURCE

import resitta
from resitta.cli import main
from resitta.conformance import tiny_network
from resitta.models.user_code import load_file


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "own.py").write_text(NEEDS_SOURCE)
    (tmp_path / "model.py").write_text("from resitta.conformance import tiny_network as make")
    rng = np.random.default_rng(0)
    for number in range(10):
        path = tmp_path / "images" / str(number % 5) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return [f"{tmp_path / 'model.py'}:make", str(tmp_path / "images")]


def test_a_file_is_prepared_and_used(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method, out = f"{tmp_path / 'own.py'}:centred", tmp_path / "file.safetensors"
    assert main(["prepare", *arguments, "--for", method, "--out", str(out), "--size", "16", "--images", "5"]) == 0
    shown = capsys.readouterr().out
    assert "source data of centred" in shown
    assert f"5 images read; written: {out}" in shown
    load_file(tmp_path / "own.py")
    assert resitta.adapt(tiny_network(), "centred", source=out).method.source.images == 5  # type: ignore[attr-defined]
    assert main(["check", method, "--set", f"source={out}", "--model", arguments[0], "--size", "16"]) == 0
    bench = [
        "bench",
        *arguments,
        "--methods",
        method,
        "--corruptions",
        "fog",
        "--size",
        "16",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*bench, "--source", str(out)]) == 0
    assert main([*bench, "--source-images", "5"]) == 0


def test_a_method_that_needs_none_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *arguments, "--for", "tent", "--size", "16"]) == 2
    assert "tent needs no source data" in capsys.readouterr().err
