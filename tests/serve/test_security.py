import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
from starlette.requests import Request

from resitta.errors import BadSetting
from resitta.serve.refused import Refused
from resitta.serve.security import find_token, name_checker, names_of, new_token, same


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


@pytest.mark.parametrize(
    ("host", "others", "called", "answered"),
    [
        ("127.0.0.1", [], "localhost", True),
        ("localhost", [], "127.0.0.1:8000", True),
        ("::1", [], "[::1]:8000", True),
        ("127.0.0.9", [], "127.0.0.9:8000", True),
        ("127.0.0.9", [], "elsewhere.example", False),
        ("127.0.0.1", [], "elsewhere.example", False),
        ("127.0.0.1", [], "localhost.elsewhere.example", False),
        ("127.0.0.1", ["Proxy.example"], "proxy.EXAMPLE:443", True),
        ("0.0.0.0", [], "anything.example", True),
        ("0.0.0.0", ["proxy.example"], "anything.example", False),
    ],
)
def test_names_that_a_service_answers_to(host: str, others: list[str], called: str, answered: bool) -> None:
    scope = {
        "type": "http",
        "scheme": "http",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", called.encode())],
    }
    check = name_checker(names_of(host, others))
    with nullcontext() if answered else pytest.raises(Refused, match="answers to .*localhost.*--allow-host"):
        asyncio.run(check(Request(scope)))  # type: ignore[arg-type]


def test_new_tokens_differ_and_only_equal_ones_are_the_same() -> None:
    one, two = new_token(), new_token()
    assert one != two
    assert same(one, one)
    assert not same(one, two)
    assert not same("é", one)
