"""benchmarks/testbeds.py from a small archive to a testbed that benchmarks/beds.py can open."""

import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("safetensors")
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder laid out as the public CIFAR-10 archive: five batches of ten images and a test batch."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {b"data": rng.integers(0, 256, (10, 3072), np.uint8), b"labels": list(range(10))}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
    return folder.parent


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.slow
def test_a_testbed_is_made_from_the_public_archive_and_opened(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "testbeds"
    made = run("testbeds.py", "--source", archive, "--out", out, "--epochs", 2, "--batch-size", 10, "--device", "cpu")
    assert made.returncode == 0, made.stderr
    result = json.loads((out / "cifar10-wrn16x1.json").read_text("utf-8"))
    assert result["train_images"] == 50
    assert f"clean error {result['clean_error']:.2f} %" in made.stdout
    options = ("--beds", out, "--corruptions", "clean", "--methods", "source", "--out", tmp_path / "runs")
    measured = run("beds.py", *options)
    assert measured.returncode == 0, measured.stderr
    assert f"source, seed 1: {result['clean_error']:.2f} %" in measured.stdout


@pytest.mark.slow
def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    made = run("testbeds.py", "--source", tmp_path, "--device", "cpu")
    assert made.returncode != 0
    assert "instead of c58f30108f718f92721af3b95e74349a; delete it" in made.stderr
