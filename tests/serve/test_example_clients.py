"""The example clients against a real service."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.serve.helpers import TOKEN, picture
from tests.tools import write_video

from resitta.serve.service import Service

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"


def run(script: str, *arguments: str, token: str = "") -> str:
    command = [sys.executable, str(CLIENTS / script), *arguments]
    sources = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    secret = {"RESITTA_TOKEN": token, **sources}
    done = subprocess.run(command, capture_output=True, text=True, env=secret, check=False, timeout=60)
    return done.stdout + done.stderr


def test_predict_and_control(url: str, service: Service, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    assert "version 0" in run("predict.py", str(tmp_path / "a.png"), "--url", url)
    assert "token" in run("predict.py", "--control", "pause", "--url", url, token="wrong")
    assert "'learning': False" in run("predict.py", "--control", "pause", "--url", url, token=TOKEN)
    assert service.writer.report().paused


def test_a_folder_is_watched_in_order(url: str, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(picture(seed=number))
    (tmp_path / "broken.jpg").write_bytes(picture("JPEG")[:200])
    (tmp_path / "notes.txt").write_text("no picture")
    lines = run("watch_folder.py", str(tmp_path), "--url", url, "--every", "0.1", "--patience", "0.5").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["0.png", "1.png", "2.png", "broken.jpg"]
    assert "refused" in lines[3]


def test_a_video_is_sent_frame_by_frame(url: str, service: Service, tmp_path: Path) -> None:
    pytest.importorskip("av")
    write_video(tmp_path / "film.mp4", np.random.default_rng(0).integers(0, 256, (22, 32, 32, 3), dtype=np.uint8))
    lines = run("video.py", str(tmp_path / "film.mp4"), "--url", url, "--every", "2").splitlines()
    assert lines[-1].startswith("frame 20: ")
    assert len(lines) == service.predicted == 11


@pytest.mark.slow
def test_a_deployment_on_ray_serve_adapts() -> None:
    pytest.importorskip("ray.serve")
    assert "256 answers; 256 samples, " in run("../serving/ray_serve.py", "--try")
