from pathlib import Path

import pytest

from resitta.cli import main


def test_check_reports_each_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "source"]) == 0
    shown = capsys.readouterr().out
    assert "passed reset is bit exact" in shown
    assert "13 passed, 0 failed" in shown


def test_check_takes_a_file_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    mine = tmp_path / "mine.py"
    mine.write_text(example.read_text().replace('"slow-bn"', '"slow-bn-for-cli"'))
    assert main(["check", f"{mine}:slow-bn-for-cli"]) == 0
    assert "13 passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "tnet"], "resitta: no method is called 'tnet'. Did you mean 'tent'?"),
        (["check", "nowhere.py:mine"], "resitta: nowhere.py is no file"),
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
