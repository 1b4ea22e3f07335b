"""The measuring commands on real files, and every kind of trouble with them."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tools import OWN_METHOD

from resitta.bench.experiments import METHODS
from resitta.bench.record import load, read_json, write_json
from resitta.cli import main
from resitta.conformance import tiny_network
from resitta.method import list_methods

MODEL = """
from resitta.conformance import tiny_network
def make():
    return tiny_network(classes=4)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for label in "abcd":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path


BENCH = ["bench", "mine.py:make", "photos", "--size", "32", "--corruptions", "fog", "contrast", "--out", "out"]


def test_a_bench_on_images_of_ones_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BENCH, "--methods", "source", "resitta", "--seeds", "1", "2", "--set", "resitta.eta=0.05"]) == 0
    shown = capsys.readouterr().out
    assert "ResiTTA" in shown
    records = [load(path) for path in sorted((place / "out").glob("*.json"))]
    assert [(r.method, r.seed) for r in records] == [("resitta", 1), ("resitta", 2), ("source", 1), ("source", 2)]
    assert records[0].settings["eta"] == 0.05
    assert records[0].samples == 160
    page = (place / "out" / "index.html").read_text()
    assert "<svg" in page
    assert (place / "out" / "table.tex").read_text().count("\\\\") >= 3
    for form, word in (("text", "Avg"), ("markdown", "| Source"), ("csv", "method"), ("latex", "toprule")):
        assert main(["report", "out", "--format", form]) == 0
        assert word.lower() in capsys.readouterr().out.lower()
    assert main(["report", "out", "--format", "html"]) == 0


def test_images_as_they_are(place: Path) -> None:
    command = ["bench", "mine.py:make", "photos", "--size", "32", "--corruptions", "clean", "--methods", "source"]
    assert main([*command, "--out", "out"]) == 0
    (record,) = [load(path) for path in (place / "out").glob("*.json")]
    assert record.domains == ("clean",)
    assert not (place / "out" / "corrupted").exists()


def test_reproducing_a_sweep_on_other_images(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(tiny_network(classes=4).state_dict(), "weights.pt")
    command = ["reproduce", "eta", "photos.zip", "weights.pt", "--model", "mine.py:make", "--per-domain", "8"]
    import zipfile

    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in sorted(Path("photos").rglob("*.png")):
            archive.write(path, path.relative_to("photos"))
    assert main([*command, "--out", "out"]) == 0
    assert len(list((place / "out").glob("*.json"))) == 5
    assert "0.005" in capsys.readouterr().out
    table = ["reproduce", "table1", *command[2:], "--methods", "source", "--out", "gold"]
    assert main(table) == 0
    assert "SOURCE CHECK FAILED" in capsys.readouterr().out.replace("\n", " ")


def spoil_missing(place: Path) -> None:
    (place / "photos").rename(place / "elsewhere")


def spoil_not_an_image(place: Path) -> None:
    (place / "photos" / "a" / "0.png").write_text("no image")


def spoil_empty(place: Path) -> None:
    for path in (place / "photos").rglob("*.png"):
        path.unlink()


def spoil_cifar(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        (place / "photos").rename(place / "elsewhere")
        (place / "photos").mkdir()
        for name in ("fog", "contrast"):
            np.save(place / "photos" / f"{name}.npy", np.zeros((50, 32, 32, 3), np.uint8))
        np.save(place / "photos" / "labels.npy", np.arange(50) % 4)
        change(place / "photos")

    return spoil


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_missing, "photos does not exist"),
        (spoil_not_an_image, "0.png"),
        (spoil_empty, "photos is no known data set"),
        (spoil_cifar(lambda folder: (folder / "contrast.npy").unlink()), "contrast.npy"),
        (spoil_cifar(lambda folder: (folder / "labels.npy").unlink()), "labels.npy"),
        (spoil_cifar(lambda folder: truncate(folder / "fog.npy")), "fog.npy"),
        (spoil_cifar(lambda folder: np.save(folder / "labels.npy", np.zeros(7, np.int64))), "labels.npy"),
    ],
)
def test_damaged_data_gets_one_sentence(
    place: Path, spoil: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(place)
    size = [] if (place / "photos" / "fog.npy").exists() else ["--size", "32"]
    command = ["bench", "mine.py:make", "photos", "--corruptions", "fog", "contrast", "--methods", "source", *size]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "checkpoint", "words"),
    [
        ("mine.py:make", "missing.pt", "missing.pt"),
        ("mine.py:make", "mine.py", "mine.py"),
        ("wrn16x1", "weights.pt", "weights.pt"),
        ("mine.py:nothing", None, "nothing"),
        ("wrn28", None, "Did you mean 'wrn28x10'"),
    ],
)
def test_a_wrong_model_or_checkpoint_gets_one_sentence(
    place: Path, model: str, checkpoint: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(tiny_network(classes=4).state_dict(), "weights.pt")
    command = ["bench", model, "photos", "--size", "32", *(["--checkpoint", checkpoint] if checkpoint else [])]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--methods", "tnet"], "Did you mean 'tent'"),
        (["--set", "etta=1"], "no method of this bench has the setting 'etta'"),
        (["--set", "lr"], "--set takes key=value"),
        (["--set", "lr=-1"], "lr must be > 0"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--severity", "9"], "severity must be <= 5"),
        (["--engine", "processes", "--workers", "0"], "workers must be >= 1"),
    ],
)
def test_wrong_options_get_one_sentence(
    place: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "mine.py:make", "photos", "--size", "32", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no records" in capsys.readouterr().err


def write_method(place: Path, factor: str) -> None:
    (place / "own.py").write_text(OWN_METHOD.replace("FACTOR", factor))


def losses(place: Path) -> list[float]:
    return [load(path).nll for path in (place / "out").glob("mine-*.json")]


OWN = [*BENCH, "--methods", "own.py:mine"]


def test_a_changed_method_is_run_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_method(place, "1")
    assert main(OWN) == 0
    (first,) = losses(place)
    write_method(place, "-1")
    assert main(OWN) == 0
    assert "kept from an earlier run" not in capsys.readouterr().out
    assert len(set(losses(place))) == 2, "the changed method predicts otherwise"
    write_method(place, "1")
    assert main(OWN) == 0
    assert "mine, seed 1: kept from an earlier run" in capsys.readouterr().out
    assert first in losses(place)
    assert len(losses(place)) == 2


def test_a_changed_model_is_run_again(place: Path) -> None:
    for code in (MODEL, MODEL.replace("classes=4)", "classes=4)[:]")):
        (place / "mine.py").write_text(code)
        assert main([*BENCH, "--methods", "source"]) == 0
    assert len(list((place / "out").glob("source-*.json"))) == 2


def test_a_kept_record_says_so_and_can_be_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*BENCH, "--methods", "source", "--seeds", "1", "2"]
    assert main(command) == 0
    assert "kept" not in capsys.readouterr().out
    assert main(command) == 0
    shown = capsys.readouterr().out
    dates = re.findall(r"source, seed (\d): kept from an earlier run, (\d{4}-\d\d-\d\d \d\d:\d\d) UTC", shown)
    assert [seed for seed, _ in dates] == ["1", "2"]
    assert "--rerun repeats them" in shown
    path = next((place / "out").glob("source-1-*.json"))
    content = read_json(path)
    content["run"]["errors"] = [1.0, 2.0]
    write_json(path, content)
    assert main([*command, "--rerun"]) == 0
    assert "kept" not in capsys.readouterr().out
    assert load(path).errors != (1.0, 2.0)
    assert len(list((place / "out").glob("*.json"))) == 2


@pytest.mark.slow
def test_the_example_of_a_method_is_benched_in_other_processes(place: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    command = [*BENCH[:-2], "--methods", f"{example}:slow-bn", "--set", "slow-bn.rate=0.2", "--out"]
    assert main([*command, "local"]) == 0
    assert main([*command, "pool", "--engine", "processes", "--workers", "1", "--threads", "1"]) == 0
    (one,), (other,) = ([load(path) for path in (place / out).glob("slow-bn-*.json")] for out in ("local", "pool"))
    assert one.settings == {"rate": 0.2}
    assert (one.nll, one.identity) == (other.nll, other.identity)


def test_all_methods(place: Path) -> None:
    small = ["bench", "mine.py:make", "photos", "--size", "32", "--corruptions", "clean", "--out", "out"]
    assert main([*small, "--methods", "all", "--per-domain", "8"]) == 0
    assert {load(path).method for path in (place / "out").glob("*.json")} == set(list_methods())


def test_all_rows_of_a_table(place: Path) -> None:
    torch.save(tiny_network(classes=4).state_dict(), "weights.pt")
    command = ["reproduce", "table1", "photos", "weights.pt", "--model", "mine.py:make", "--per-domain", "4"]
    assert main([*command, "--methods", "all", "--out", "out"]) == 0
    assert {load(path).method for path in (place / "out").glob("*.json")} == set(METHODS)
    assert main([*command, "--methods", "none", "--out", "out"]) == 2


def test_random_weights_are_named_in_bold(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "wrn16x1", "photos", "--size", "32", "--corruptions", "clean", "--methods", "source"]
    assert main([*command, "--out", "out", "--model-set", "classes=4"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("WARNING: wrn16x1 has random weights; give it a checkpoint") == 2, "before and after"
    assert "DoubtfulRuns" not in shown.err
    (record,) = [load(path) for path in (place / "out").glob("*.json")]
    assert record.identity["untrained"] is True
    assert record.identity["model_options"] == {"classes": 4}


def test_options_reach_the_function_of_the_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text(MODEL.replace("make():", "make(**options):\n    print('made with', options)"))
    options = ["a=true", "b=false", "c=None", "d=3", "e=0.5", "f=DEFAULT", "g=none"]
    assert main([*BENCH, "--methods", "source", "--model-set", *options]) == 0
    values = "{'a': True, 'b': False, 'c': None, 'd': 3, 'e': 0.5, 'f': 'DEFAULT', 'g': 'none'}"
    assert f"made with {values}" in capsys.readouterr().out
    assert main([*BENCH, "--methods", "source", "--model-set", "a"]) == 2
    assert "--model-set takes key=value, found 'a'" in capsys.readouterr().err


def test_another_number_of_classes_is_an_error_before_any_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text(MODEL.replace("classes=4", "classes=7"))
    assert main([*BENCH, "--methods", "source"]) == 2
    assert "the model has 7 classes, the images have 4" in capsys.readouterr().err
    assert not list(place.rglob("*.npy"))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_are_those_asked_for(place: Path, threads: str) -> None:
    assert main([*BENCH, "--methods", "source", "--threads", threads]) == 0
    (path,) = (place / "out").glob("*.json")
    assert read_json(path)["environment"]["threads"] == threads
