import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from tests.serve.browser import CHROMIUM, Browser
from tests.serve.helpers import TOKEN, picture

from resitta.errors import BadSetting
from resitta.serve.security import allowed_names, client_of, find_token, host_name, same
from resitta.serve.server import listen
from resitta.serve.service import Service
from resitta.serve.settings import Limits


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


def test_only_equal_tokens_are_the_same() -> None:
    one, two = "a" * 32, "b" * 32
    assert same(one, one)
    assert not same(one, two)
    assert not same("é", one)


def post(url: str, headers: dict[str, str]) -> int:
    return httpx.post(f"{url}/predict", content=picture(), headers={"Content-Type": "image/png", **headers}).status_code


ORIGINS = [
    ("box.example:8000", "http://box.example:8000", True),
    ("Box.example:8000", "http://box.example:8000", True),
    ("box.example", "https://box.example", True),
    ("box.example:443", "https://box.example", True),
    ("box.example", "http://box.example:80", True),
    ("[fe80::1]:8000", "http://[fe80::1]:8000", True),
    ("box.example:8000", "http://elsewhere.example:8000", False),
    ("box.example:8000", "http://box.example", False),
    ("box.example:8000", "http://box.example:8001", False),
    ("box.example:8000", "http://x.box.example:8000", False),
    ("box.example:8000", "http://box.example:8000.elsewhere.example", False),
    ("box.example", "file://box.example", False),
    ("box.example", "http://box.example:x", False),
    ("box.example", "null", False),
    ("box.example", "", False),
]
"""A host, an origin, and whether they are the same place."""


def test_pages_are_told_apart_by_their_origin(open_url: str, service: Service) -> None:
    for host, origin, answered in ORIGINS:  # one service for all: to start one takes most of the time
        before = service.predicted
        assert post(open_url, {"Host": host, "Origin": origin}) == (200 if answered else 403), (host, origin)
        assert service.predicted == before + answered


def test_what_a_browser_says_of_the_page_decides(url: str) -> None:
    for site, answered in (("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)):
        behind_proxy = {"Sec-Fetch-Site": site, "Origin": "https://public.example"}  # which passes on another Host
        for headers in ({"Sec-Fetch-Site": site}, behind_proxy):
            assert post(url, headers) == (200 if answered else 403), site
        controls = httpx.post(f"{url}/pause", headers={"Sec-Fetch-Site": site, "Authorization": f"Bearer {TOKEN}"})
        assert controls.status_code == (200 if answered else 403), site
        assert httpx.get(f"{url}/stats", headers={"Sec-Fetch-Site": site}).status_code == 200


ATTACK = """<script>
const form = new FormData();
form.append("images", new Blob([Uint8Array.from(%s)]), "a.png");
const send = fetch("http://box.test:%s/predict", {method: "POST", mode: "no-cors", body: form});
send.catch(() => 0).then(() => document.title = "sent");
</script>"""


@pytest.fixture
def elsewhere(open_url: str) -> Iterator[str]:
    """A page of another site, which sends a picture to the service."""
    page = (ATTACK % (list(picture()), open_url.rpartition(":")[2])).encode()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://elsewhere.test:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_page_of_another_site_cannot_teach_the_model_over_plain_http(
    open_url: str, elsewhere: str, service: Service
) -> None:
    own = open_url.replace("127.0.0.1", "box.test")
    with Browser(
        "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-features=LocalNetworkAccessChecks"
    ) as browser:
        browser.open(elsewhere)
        browser.until("document.title === 'sent'")
        refused = httpx.get(f"{open_url}/metrics").text
        assert service.predicted == 0
        assert 'resitta_refused_total{status="403"} 1.0' in refused, "the picture came, without Sec-Fetch-Site"
        browser.open(own)
        sent = f"fetch('/predict', {{method: 'POST', body: Uint8Array.from({list(picture())}), headers: "
        assert browser.run(f"{sent}{{'Content-Type': 'image/png'}}}}).then(answer => answer.status)") == 200
        assert service.predicted == 1


@pytest.mark.parametrize(
    ("host", "others", "called", "answered"),
    [
        ("127.0.0.1", [], "localhost", True),
        ("localhost", [], "127.0.0.1:8000", True),
        ("Localhost", [], "elsewhere.example", False),
        ("127.0.0.9", [], "127.0.0.9:8000", True),
        ("127.0.0.9", [], "elsewhere.example", False),
        ("127.0.0.1", [], "elsewhere.example", False),
        ("127.0.0.1", [], "localhost.elsewhere.example", False),
        ("2130706433", [], "elsewhere.example", False),
        ("127.0.0.1", ["Proxy.example"], "proxy.EXAMPLE:443", True),
        ("127.0.0.1", ["proxy.example:443"], "proxy.example", True),
        ("127.0.0.1", ["[fe80::1]"], "[fe80::1]:443", True),
        ("0.0.0.0", [], "anything.example", True),
        ("0.0.0.0", ["proxy.example"], "anything.example", False),
        ("0.0.0.0", ["proxy.example"], "proxy.example", True),
    ],
)
def test_names_that_a_service_answers_to(host: str, others: list[str], called: str, answered: bool) -> None:
    with listen(host, 0) as on:
        names = allowed_names(on.getsockname()[0], host, others)
    assert (names is None or host_name(called) in names) == answered


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("address", ["::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_names_on_the_sixth_version(address: str) -> None:
    names = allowed_names(address, address)
    assert names is not None
    assert {"localhost", "::1"} <= names
    assert "elsewhere.example" not in names


def test_another_name_of_the_machine_is_its_own_if_names_are_given() -> None:
    names = allowed_names("10.0.0.7", "MyBox.lan", ["proxy.example"])
    assert names is not None
    assert {"mybox.lan", "10.0.0.7", "proxy.example"} <= names


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
