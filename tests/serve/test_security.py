from pathlib import Path

import pytest

from resitta.errors import BadSetting
from resitta.serve.security import find_token, new_token, same


def test_tokens_come_from_a_file_then_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESITTA_TOKEN", raising=False)
    assert find_token(None) is None
    monkeypatch.setenv("RESITTA_TOKEN", "from the environment")
    assert find_token(None) == "from the environment"
    (tmp_path / "token").write_text("from a certain file\n")
    assert find_token(tmp_path / "token") == "from a certain file"


def test_short_and_missing_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESITTA_TOKEN", "short")
    with pytest.raises(BadSetting, match="at least 16 characters, found 5"):
        find_token(None)
    with pytest.raises(BadSetting, match="cannot be read"):
        find_token(tmp_path / "nowhere")


def test_new_tokens_differ_and_only_equal_ones_are_the_same() -> None:
    one, two = new_token(), new_token()
    assert one != two
    assert same(one, one)
    assert not same(one, two)
    assert not same("é", one)
