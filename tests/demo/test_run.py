from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from resitta.bench.record import RunRecord, load
from resitta.cli import main
from resitta.demo import digits, run
from resitta.demo.photographs import PHOTOGRAPHS
from resitta.method import Method, create
from resitta.report.timeline import Timeline


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESITTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digits, "STEPS", 60)
    return tmp_path / "out"


def records(folder: Path) -> dict[str, RunRecord]:
    return {path.stem.split("-1-")[0]: load(path) for path in folder.glob("*.json")}


def test_the_demo_of_photographs_ends_in_a_page_with_the_timeline(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--samples", "20", "--workers", "1", "--out", str(quick)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "20 images per corruption instead of 500" in shown
    assert "not those of the README" in shown
    text = (quick / "index.html").read_text(encoding="utf-8")
    for words in (
        "Photographs under corruption",
        "The label prior at work",
        "predicted without the prior",
        "automobile",
    ):
        assert words in text
    assert "resitta demo --seed=1 --samples=20" in text
    found = records(quick)
    assert set(found) == {"source", "bn", "rotta", "resitta", "tide"}
    assert "Tide" in text.partition("</h1>")[0].rpartition("<h1>")[2], "the page is about the method with the prior"
    assert all(record.samples == 15 * 20 for record in found.values())


def test_without_a_label_prior_there_is_no_timeline(quick: Path) -> None:
    page, (record,) = run.run_demo(quick, samples=10, methods=["bn"], workers=1)
    assert record.identity["protocol"]["per_domain"] == 10
    text = page.read_text(encoding="utf-8")
    assert "The label prior at work" not in text
    assert "resitta demo --seed=1 --samples=10 --methods bn" in text


def test_the_page_is_about_the_best_method_with_a_prior(quick: Path) -> None:
    chosen: list[str | Method] = ["source", "resitta", create("source", label_prior="temporal")]
    page, runs = run.run_demo(quick, samples=40, methods=chosen, workers=1)
    text = page.read_text(encoding="utf-8")
    assert f"{runs[2].average:.1f}\u00a0%" in text.partition("</h1>")[0].rpartition("<h1>")[2]


def test_the_demo_of_digits_writes_a_page_and_records(quick: Path) -> None:
    page, _ = run.run_demo(quick, "digits", samples=70, workers=1)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 4
    assert "Handwritten digits under corruption" in text
    assert "resitta demo digits --seed=1" in text
    found = records(quick)
    assert set(found) == {"source", "bn", "tent", "rotta", "resitta"}
    for record in found.values():
        assert len(record.errors) == 15
        assert record.samples == 15 * 70


def test_a_fast_demo_says_that_it_is_too_short(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(digits.DIGITS, fast_samples=20, samples=30)
    monkeypatch.setitem(run.SUBJECTS, "digits", short)
    words = ["demo", "digits", "--methods", "source", "--out", str(quick)]
    assert main([*words, "--fast"]) == 0
    assert records(quick)["source"].samples == 15 * 20
    shown = " ".join(capsys.readouterr().out.split())
    assert "20 images per corruption instead of 30" in shown
    assert "index.html" in shown
    assert main(words) == 0
    assert "images per corruption" not in capsys.readouterr().out


def test_methods_that_need_source_data_get_the_digits_of_the_training(quick: Path) -> None:
    _, (record,) = run.run_demo(quick, "digits", samples=20, methods=["eata"], workers=1)
    assert record.settings["source"].startswith("<statistics of 1000 source images for eata, ")


def test_the_stream_of_digits_is_correlated_and_fresh(quick: Path) -> None:
    spec = digits.DIGITS.open(quick, samples=900, seed=1, retrain=False, bar=lambda _: lambda done, total: None)
    first = spec.data.read(np.arange(900)).flatten(1)  # type: ignore[union-attr]
    assert len(np.unique(first.numpy(), axis=0)) == 900, "no image comes twice in a domain"
    sets = dict.fromkeys(spec.protocol.domains(), spec.data)
    stream = spec.protocol.stream(sets, 1)  # type: ignore[arg-type]
    labels = np.concatenate([batch.labels for batch in stream.batches(64)])
    assert len(labels) == 15 * 900
    assert np.mean(labels[1:] == labels[:-1]) > 0.8, "neighbours mostly show the same digit"


def test_a_method_of_the_users_own_takes_part(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    words = ["demo", "--samples", "20", "--workers", "1", "--out", str(quick)]
    assert main([*words, "--methods", "source", f"{example}:slow-bn"]) == 0
    assert set(records(quick)) == {"source", "slow-bn"}
    assert "own_method.py:slow-bn" in (quick / "index.html").read_text(encoding="utf-8")
    assert main(["demo", "--methods", "sorce"]) != 0
    assert "no method is called 'sorce'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "0"], "samples must be 1 or more, found 0"),
        (["--samples", "2001"], "there are 2,000 photographs, found 2,001 samples"),
        (["--workers", "0"], "workers must be 1 or more, found 0"),
        (["--retrain"], "the network of the photographs comes trained"),
        (["digits", "--samples", "-1"], "samples must be 1 or more, found -1"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], message: str, quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(quick), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_changed_images_are_those_of_the_timeline(quick: Path) -> None:
    run.run_demo(quick, samples=10, methods=["source"], workers=1)
    bench = PHOTOGRAPHS.open(quick, samples=10, seed=1, retrain=False, bar=lambda _: lambda d, t: None).open()
    stream = bench.protocol.stream(bench.sets, 1)
    labels = np.array([3, 3, 3])
    piece = Timeline(labels, np.array([7, 3, 3]), np.array([3, 3, 5]), (), first=12)
    corrected, spoiled = run.changed_strips(piece, stream, PHOTOGRAPHS.classes)
    assert (corrected.labels, spoiled.labels) == (["horse → cat"], ["cat → dog"])
    expected, _ = stream.read(stream.domain[[12]], stream.index[[12]])
    assert np.array_equal(corrected.images[0], expected[0].permute(1, 2, 0).numpy())
    assert run.changed_strips(Timeline(labels, labels, labels, ()), stream, PHOTOGRAPHS.classes) == []
