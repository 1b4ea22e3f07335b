"""Which client a request comes from."""

import pytest
from fastapi import FastAPI, Request

from resitta.serve.clients import client_of
from resitta.serve.settings import Limits

TOKEN = "the token of the tests"


def key(
    *, peer: str | None = "192.0.2.1", proxies: int = 0, token: str | None = None, forwarded: tuple[str, ...] = ()
) -> str:
    app = FastAPI()
    app.state.token, app.state.limits = TOKEN, Limits(proxies=proxies)
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    headers += [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
    client = None if peer is None else (peer, 50_000)
    return client_of(Request({"type": "http", "app": app, "headers": headers, "client": client}))


def test_a_client_is_its_address() -> None:
    assert key() == key(peer="192.0.2.1") != key(peer="192.0.2.2")
    assert key(peer="2001:db8:0:1::7") == key(peer="2001:db8:0:1:9::9") != key(peer="2001:db8:0:2::7")
    assert key(peer="::ffff:192.0.2.1") == key()
    assert key(peer=None) == "unknown"


def test_the_holder_of_the_token_is_one_client_from_anywhere() -> None:
    assert key(token=TOKEN) == key(token=TOKEN, peer="192.0.2.2") != key()
    assert TOKEN not in key(token=TOKEN)


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x"])
def test_made_up_tokens_make_no_new_client(token: str) -> None:
    assert key(token=token) == key()


def test_forwarded_addresses_count_only_behind_trusted_proxies() -> None:
    assert key(forwarded=("198.51.100.9",)) == key()
    assert key(proxies=1, forwarded=("198.51.100.9",)) == "198.51.100.9"
    assert key(proxies=1, forwarded=("203.0.113.1, 198.51.100.9",)) == "198.51.100.9"
    assert key(proxies=2, forwarded=("203.0.113.1", "198.51.100.9:4711, 198.51.100.10")) == "198.51.100.9"
    assert key(proxies=2, forwarded=("198.51.100.9",)) == key()
    assert key(proxies=1, forwarded=("nonsense",)) == key()
