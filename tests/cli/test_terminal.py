import pytest

from resitta.cli.terminal import bars, duration


def test_bars_take_done_and_total() -> None:
    with bars() as bar:
        one, two = bar("one"), bar("two")
        one(1, 2)
        two(5, 5)
        one(2, 2)


def test_progress_reads_as_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with bars() as bar:
        bar("training")(5, 5)
        bar("waiting")
    training, waiting = capsys.readouterr().out.splitlines()[-2:]
    assert training.rstrip().endswith("100% 0 s, 0 s left")
    assert waiting.rstrip().endswith(" 0 s")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (3600, "1 h 0 min"), (9e4, "25 h 0 min")],
)
def test_durations_are_written_in_their_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
