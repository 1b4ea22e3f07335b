"""What `/openapi.json` promises, checked by schemathesis with generated requests, where it is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.serve.helpers import TOKEN

from resitta.serve.engine import Engine
from resitta.serve.schema import refusals

COMMAND = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
# No schema can say which bytes are an image, so a request that fits it may still be refused.
CHECKS = ("--checks", "all", "--exclude-checks", "positive_data_acceptance")


def test_every_refusal_is_a_sentence() -> None:
    assert {answer["model"].__name__ for answer in refusals(400, 401).values()} == {"Sentence"}


@pytest.mark.skipif(COMMAND is None, reason="schemathesis is not installed")
@pytest.mark.parametrize("headers", [(), ("--header", f"Authorization: Bearer {TOKEN}")], ids=["no token", "token"])
def test_schemathesis_finds_nothing(url: str, engine: Engine, tmp_path: Path, headers: tuple[str, ...]) -> None:
    options = ("--max-examples", "20", "--seed", "1", "--no-color")
    found = subprocess.run(
        [str(COMMAND), "run", f"{url}/openapi.json", *CHECKS, *options, *headers],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,  # it keeps a folder of its own
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "Tested: 12" in found.stdout
    assert engine.ready
