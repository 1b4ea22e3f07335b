"""The page of the HTTP API in a real browser."""

import json
from pathlib import Path

import pytest
from tests.serve.browser import CHROMIUM, Browser
from tests.serve.helpers import TOKEN, picture

from resitta.serve.service import Service

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def test_the_interface_is_described_without_a_net(browser: Browser, url: str) -> None:
    browser.open(f"{url}/docs")
    browser.until("document.querySelectorAll('article').length >= 13")
    part = "document.getElementById('POST-predict').parentElement"
    schema, example = browser.run(f"[...{part}.querySelectorAll('details pre')].map((p) => p.textContent)")
    assert '"top": [{' in schema
    assert "probability" in schema
    assert json.loads(example)["predictions"][0]["name"] == "cat"
    line = f"curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg {url}/predict"
    assert line in browser.run(f"{part}.innerText")
    assert browser.errors == []


def test_routes_can_be_tried(browser: Browser, url: str, service: Service, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(picture())
    browser.open("about:blank")
    browser.open(f"{url}/docs")
    browser.until("document.querySelectorAll('article').length >= 13")
    form = "document.getElementById('NAME').parentElement.querySelector('form')"
    stats, pause, predict = (form.replace("NAME", name) for name in ("GET-stats", "POST-pause", "POST-predict"))
    browser.run(f"{stats}.requestSubmit()")
    browser.until(f"{stats}.querySelector('pre').textContent.startsWith('200')")
    browser.choose("input[type=file]", tmp_path / "photo.png")
    browser.run(f"{predict}.querySelector('input').value = '2'; {predict}.requestSubmit()")
    browser.until(f"{predict}.querySelector('pre').textContent.includes('probability')")
    assert service.predicted == 1
    browser.run(f"byId('token').value = 'wrong'; {pause}.requestSubmit()")
    browser.until(f"{pause}.querySelector('pre').textContent.startsWith('401')")
    browser.run(f"byId('token').value = {TOKEN!r}; {pause}.requestSubmit()")
    browser.until(f"{pause}.querySelector('pre').textContent.startsWith('200')")
    assert service.writer.report().paused
    browser.errors.clear()  # the browser itself notes answers of 401
