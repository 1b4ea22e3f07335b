from pathlib import Path

import numpy as np
import pytest

from resitta.bench.record import load
from resitta.cli import main
from resitta.demo import digits, run


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESITTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digits, "STEPS", 60)
    return tmp_path / "out"


def test_the_demo_writes_a_page_and_records(quick: Path) -> None:
    page, _ = run.run_demo(quick, samples=70)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 4
    assert "Handwritten digits under corruption" in text
    for name in run.METHODS:
        record = load(quick / f"{name}.json")
        assert len(record.errors) == 15
        assert record.samples == 15 * 70
    run.run_demo(quick, samples=70)  # again, from the cache


def test_a_fast_demo_says_that_its_errors_are_not_those_of_the_readme(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "FAST_SAMPLES", 40)
    assert main(["demo", "--fast", "--out", str(quick)]) == 0
    assert load(quick / "resitta.json").samples == 15 * 40
    shown = " ".join(capsys.readouterr().out.split())
    assert "40 images per corruption instead of 3000" in shown
    assert "not those of the README" in shown
    assert "ResiTTA" in shown
    assert "index.html" in shown
    monkeypatch.setattr(run, "SAMPLES", 40)
    assert main(["demo", "--out", str(quick)]) == 0
    assert "not those of the README" not in capsys.readouterr().out


def test_methods_that_need_source_data_get_the_digits_of_the_training(quick: Path) -> None:
    run.run_demo(quick, samples=20, methods=["eata"])
    assert load(quick / "eata.json").settings["source"].startswith("<statistics of 1000 source images for eata, ")


def test_the_stream_is_correlated_and_fresh() -> None:
    stream = run.corrupted_stream(digits.load_digits(), 900, 1, lambda done, total: None)
    assert len(stream) == 15 * 900
    assert len(stream.names) == 15
    labels = np.concatenate([batch.labels for batch in stream.batches(64)])
    assert np.mean(labels[1:] == labels[:-1]) > 0.8, "neighbours mostly show the same digit"
    first = stream.sets[0].read(np.arange(900)).flatten(1)
    assert len(np.unique(first.numpy(), axis=0)) == 900, "no image comes twice in a domain"


def test_a_method_of_the_users_own_takes_part(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    words = ["demo", "--samples", "40", "--out", str(quick), "--methods", "source", f"{example}:slow-bn"]
    assert main(words) == 0
    assert {path.stem for path in quick.glob("*.json")} == {"source", "slow-bn"}
    assert "own_method.py:slow-bn" in (quick / "index.html").read_text(encoding="utf-8")
    assert main(["demo", "--methods", "sorce"]) != 0
    assert "no method is called 'sorce'" in capsys.readouterr().err
