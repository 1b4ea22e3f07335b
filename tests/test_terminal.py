from pathlib import Path

import pytest

from resitta.errors import BadData
from resitta.terminal import bars, import_method, print_methods


def test_bars_take_done_and_total() -> None:
    with bars() as bar:
        one, two = bar("one"), bar("two")
        one(1, 2)
        two(5, 5)
        one(2, 2)


def test_methods_are_printed_with_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    print_methods()
    assert "threshold=0.92" in capsys.readouterr().out


def test_a_file_is_run_to_register_its_method(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("loaded = True")
    assert import_method(f"{tmp_path / 'mine.py'}:mine") == "mine"
    assert import_method("tent") == "tent"
    with pytest.raises(BadData, match="is no file; give path/to/file.py:name"):
        import_method("missing.py:mine")
