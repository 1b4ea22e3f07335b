"""What `/openapi.json` promises, checked by schemathesis with generated requests, where it is installed.

No schema can say which bytes are an image, so `real_images` makes the images in requests that are to be accepted. All
checks hold.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.serve.helpers import TOKEN

from resitta.serve.schema import refusals
from resitta.serve.service import Service

ROOT = Path(__file__).parents[2]
COMMAND = shutil.which("schemathesis", path=str(Path(sys.executable).parent))


def test_every_refusal_is_a_sentence() -> None:
    assert {answer["model"].__name__ for answer in refusals(400, 401).values()} == {"Sentence"}


@pytest.mark.skipif(COMMAND is None, reason="schemathesis is not installed")
@pytest.mark.parametrize("headers", [(), ("--header", f"Authorization: Bearer {TOKEN}")], ids=["no token", "token"])
def test_schemathesis_finds_nothing(url: str, service: Service, tmp_path: Path, headers: tuple[str, ...]) -> None:
    options = ("--checks", "all", "--max-examples", "20", "--seed", "1", "--no-color")
    places = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [str(COMMAND), "run", f"{url}/openapi.json", *options, *headers],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,  # it keeps a folder of its own
        env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.serve.real_images", "PYTHONPATH": places},
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Tested: 14" in found.stdout
    assert service.predicted > 20, "the images it sent were accepted"
    assert service.ready
