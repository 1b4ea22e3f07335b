"""The command `report` on records as a bench writes them."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.tools import make_run

from resitta.bench.protocol import Protocol
from resitta.bench.record import save, settings_of
from resitta.cli import main
from resitta.data.corruptions import CORRUPTIONS
from resitta.method import create


def write(folder: Path, method: str, error: float, seed: int = 1, **changes: Any) -> None:
    """Save a record whose error is the same on every domain; changes go to the protocol or the identity."""
    protocol = Protocol(**{key: changes.pop(key) for key in list(changes) if key in Protocol.__dataclass_fields__})
    domains, title = protocol.corruptions, changes.pop("title", "")
    settings = changes.pop("settings", {}) or settings_of(create(method)) if not title else {}
    record = make_run(
        method,
        (error,) * len(domains),
        title=title,
        settings=settings,
        seed=seed,
        domains=domains,
        samples=100 * len(domains),
        window=50,
        error_over_time=(error,) * 2 * len(domains),
        device_memory_mb=1457.0,
    )
    about = {"weights": "w", "images": ["i"], "model": "wrn28x10", "data": "CIFAR-10-C"} | changes
    identity = {"protocol": asdict(protocol), "method": method, "settings": settings, "seed": seed, **about}
    save(folder / f"{len(list(folder.glob('*')))}.json", record, **identity, environment={"device": "cuda: chip"})


def report(capsys: pytest.CaptureFixture[str], *arguments: Path | str) -> str:
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def averages(text: str) -> dict[str, str]:
    """The last column by the name of the row."""
    rows = [line.rsplit("  ", 1) for line in text.split("\n\n", maxsplit=1)[0].splitlines()[1:]]
    return {label.split("  ")[0].strip(): average.strip(" *") for label, average in rows}


def test_other_experiments_in_one_folder_are_rows_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        write(tmp_path, "tent", 30.0, seed)
    write(tmp_path, "tent", 80.0, 1, severity=3)
    write(tmp_path, "tent", 90.0, 1, model="wrn16x1")
    assert averages(report(capsys, tmp_path)) == {
        "TENT": "30.0 ± 0.0",
        "TENT (severity 3)": "80.0",
        "TENT (model wrn16x1)": "90.0",
    }


def test_only_comparable_rows_stand_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "tent", 30.0)
    write(tmp_path, "bn", 80.0, severity=3)
    out = report(capsys, tmp_path, "--paper", "cifar10")
    assert "TENT (severity 5), paper" in out
    assert "BN (severity 3), paper" not in out
    assert "No paper numbers for BN (severity 3): severity 3 (paper: 5)." in out


def test_an_ablation_on_another_data_set_is_not_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for norm in ("resibn", "rbn"):
        write(tmp_path, "resitta", 22.0, settings=settings_of(create("resitta", norm=norm)))
    out = report(capsys, tmp_path, "--paper", "cifar10")
    assert out.split("What each part contributes\n")[1].splitlines() == ["variant  full   RBN", "ours     22.0  22.0"]


def test_folders_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, error, code in ((before, 30.0, "1"), (after, 20.0, "2")):
        folder.mkdir()
        write(folder, "tent", error, code=code)
    out = report(capsys, before, after)
    assert averages(out) == {"TENT (before)": "30.0", "TENT (after)": "20.0"}
    assert "TENT (after) minus TENT (before): -10.00 points, 95 % bootstrap interval" in out
    assert "compared.html" in report(capsys, before, after, "--format", "html")
    assert not (before / "index.html").exists()


def test_every_set_of_domains_has_a_table_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "tent", 30.0)
    write(tmp_path, "tent", 80.0, corruptions=("fog", "snow"))
    out = report(capsys, tmp_path)
    assert "2 domains: fog, snow" in out
    assert f"{len(CORRUPTIONS)} domains: motion, snow" in out
    tables = report(capsys, tmp_path, "--format", "csv").split("\n\n")
    assert [len(next(csv.reader(io.StringIO(table)))) for table in tables] == [18, 5]
    written = report(capsys, tmp_path, "--format", "html")
    assert "index.html" in written
    assert "index-2.html" in written
    assert "fog, snow" in (tmp_path / "index-2.html").read_text("utf-8")


def test_a_page_with_a_title_and_a_hero_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "resitta", 30.0)
    write(tmp_path, "mine", 20.0, title="My method")
    report(capsys, tmp_path, "--format", "html", "--title", "A trial", "--highlight", "mine")
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "<h1>My method has the lowest error: 20.0\u00a0%</h1>" in page
    assert '<p class="eyebrow">A trial</p>' in page
    assert "cuda: chip" in page, "the machine of the runs, not the one that writes the page"
    assert "1,457" not in page
    assert main(["report", str(tmp_path), "--highlight", "yours"]) == 2
    assert "no row is called 'yours'" in capsys.readouterr().err.replace("\n", " ")
