from pathlib import Path

import pytest

from resitta.cli import main


def test_check_reports_each_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "source"]) == 0
    shown = capsys.readouterr().out
    assert "passed reset is bit exact" in shown
    assert "16 passed, 0 failed" in shown


def test_check_takes_a_file_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    mine = tmp_path / "mine.py"
    mine.write_text(example.read_text().replace('"slow-bn"', '"slow-bn-for-cli"'))
    assert main(["check", f"{mine}:slow-bn-for-cli"]) == 0
    assert "16 passed" in capsys.readouterr().out


def test_check_takes_settings_and_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "model.py").write_text("from resitta.conformance import spread_network as make")
    for name, shade in (("a/1.png", 40), ("a/2.png", 120), ("b/1.png", 200)):
        picture(tmp_path / "pictures" / name, shade)
    model, data = f"{tmp_path / 'model.py'}:make", str(tmp_path / "pictures")
    assert main(["check", "tent", "--set", "lr=1e-2", "--model", model, "--size", "12", "--data", data]) == 0
    assert "16 passed, 0 failed" in capsys.readouterr().out


def picture(path: Path, shade: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (shade, 255 - shade, shade // 2)).save(path)


def test_check_names_a_tensor_that_is_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "examples" / "own_rdumb.py").read_text()
    mine = tmp_path / "mine.py"
    mine.write_text(text.replace('self.register_buffer("running_mean", ', "self.running_mean = ("))
    assert main(["check", f"{mine}:my-rdumb", "--set", "period=3", "lr=0.01"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert (
        "resitta: my-rdumb fails all_state_is_saved: MyRDumbLearner.running_mean is a plain tensor: it changes" in shown
    )
    assert "register it with self.register_buffer('running_mean', ...)" in shown


def test_settings_of_check_reach_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "pl", "--set", "threshold=1.0"]) == 2
    assert "pl fails declared_parameters_move: trains='affine' is declared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "tnet"], "resitta: no method is called 'tnet'. Did you mean 'tent'?"),
        (["check", "nowhere.py:mine"], "nowhere.py is no Python file; give path/to/file.py:name"),
        (["check", "tent", "--set", "lrr=1"], "resitta: tent has no setting 'lrr'. Did you mean 'lr'?"),
        (["check", "tent", "--set", "lr"], "resitta: --set takes key=value, found 'lr'"),
        (["check", "tent", "--set", "lr=-1"], "resitta: lr must be > 0, found -1"),
        (["check", "tent", "--model", "wrn16"], "resitta: no model 'wrn16'. Did you mean"),
        (["check", "tent", "--size", "8"], "resitta: --checkpoint, --data and --size require --model"),
    ],
)
def test_trouble_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["check", "--help"]])
def test_help_teaches(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "Usage: resitta" in capsys.readouterr().out


def test_a_wrong_word_exits_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmeo"]) == 2
    shown = capsys.readouterr()
    assert 'Did you mean "demo"' in shown.out + shown.err
