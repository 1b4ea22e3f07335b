import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.serve.browser import CHROMIUM, Browser
from tests.serve.helpers import TOKEN, picture

from resitta.errors import BadSetting
from resitta.serve.security import find_token, new_token, same
from resitta.serve.service import Service


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


def post(url: str, headers: dict[str, str]) -> int:
    return httpx.post(f"{url}/predict", content=picture(), headers={"Content-Type": "image/png", **headers}).status_code


@pytest.mark.parametrize(
    ("host", "origin", "answered"),
    [
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
    ],
)
def test_pages_are_told_apart_by_their_origin(
    open_url: str, engine: Service, host: str, origin: str, answered: bool
) -> None:
    assert post(open_url, {"Host": host, "Origin": origin}) == (200 if answered else 403)
    assert engine.predicted == answered


@pytest.mark.parametrize(
    ("site", "answered"), [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)]
)
def test_what_a_browser_says_of_the_page_decides(url: str, engine: Service, site: str, answered: bool) -> None:
    behind_proxy = {"Sec-Fetch-Site": site, "Origin": "https://public.example"}  # which passes on another Host
    for headers in ({"Sec-Fetch-Site": site}, behind_proxy):
        assert post(url, headers) == (200 if answered else 403)
    controls = httpx.post(f"{url}/pause", headers={"Sec-Fetch-Site": site, "Authorization": f"Bearer {TOKEN}"})
    assert controls.status_code == (200 if answered else 403)
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
    open_url: str, elsewhere: str, engine: Service
) -> None:
    own = open_url.replace("127.0.0.1", "box.test")
    with Browser(
        "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-features=LocalNetworkAccessChecks"
    ) as browser:
        browser.open(elsewhere)
        browser.until("document.title === 'sent'")
        refused = httpx.get(f"{open_url}/metrics").text
        assert engine.predicted == 0
        assert 'resitta_refused_total{status="403"} 1.0' in refused, "the picture came, without Sec-Fetch-Site"
        browser.open(own)
        sent = f"fetch('/predict', {{method: 'POST', body: Uint8Array.from({list(picture())}), headers: "
        assert browser.run(f"{sent}{{'Content-Type': 'image/png'}}}}).then(answer => answer.status)") == 200
        assert engine.predicted == 1
