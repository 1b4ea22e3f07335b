"""The live page in a real browser."""

import time
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from tests.serve.browser import CHROMIUM, Browser
from tests.serve.helpers import TOKEN, picture, until

from resitta.serve.service import Service

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def send(client: httpx.Client, count: int) -> None:
    for seed in range(count):
        client.post("/predict", content=picture(seed=seed), headers={"Content-Type": "image/png"})


def number(browser: Browser, element: str) -> int:
    return int(browser.text(element).replace(",", ""))


def test_pause_stops_the_counters_and_resume_lets_them_go_on(
    browser: Browser, url: str, client: httpx.Client, service: Service
) -> None:
    browser.open(f"{url}/#token={quote(TOKEN)}")
    browser.until("document.getElementById('status').textContent === 'learning'")
    assert TOKEN not in browser.run("location.href")
    send(client, 40)
    browser.until("document.getElementById('learned').textContent === '40'")
    browser.until("document.getElementById('updates').textContent === '2'")

    browser.click("pause")
    browser.until("document.getElementById('status').textContent === 'paused'")
    send(client, 24)
    browser.until("document.getElementById('predicted').textContent === '64'")
    time.sleep(1.2)  # another look of the page
    assert number(browser, "learned") == 40
    assert number(browser, "updates") == service.adapter.stats.updates == 2
    assert "24 skipped" in browser.text("accounts")

    browser.click("pause")
    browser.until("document.getElementById('status').textContent === 'learning'")
    send(client, 8)
    browser.until("document.getElementById('learned').textContent === '48'")
    assert browser.errors == []


def test_the_page_shows_the_bank_the_charts_and_the_events(browser: Browser, url: str, client: httpx.Client) -> None:
    send(client, 40)
    browser.open(f"{url}/#token={quote(TOKEN)}")
    browser.until("document.querySelectorAll('#bank img').length === 16")
    browser.until("document.querySelectorAll('#drift .bar').length === 2")
    browser.until("document.querySelectorAll('#classes .bar').length === 5")
    browser.until("document.querySelectorAll('.chart path').length === 5")
    browser.click("snapshot")
    browser.until("document.getElementById('events').textContent.includes('version 2 saved')")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.errors == []


def test_charts_tell_their_values_to_the_mouse_and_to_the_keyboard(
    browser: Browser, url: str, client: httpx.Client
) -> None:
    for _ in range(3):
        send(client, 2)
        time.sleep(1)
    browser.open(url)
    browser.until("document.querySelectorAll('.chart path').length === 5")
    box = "(b => [b.right - 30, b.y + b.height / 2])(document.getElementById('latency').getBoundingClientRect())"
    browser.run("document.getElementById('latency').scrollIntoView({block: 'center'})")
    x, y = browser.run(box)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = browser.run("[...document.querySelectorAll('.tip p')].map((p) => p.textContent)")
    assert shown[0].endswith(" s ago")
    assert {line.split("  ")[1] for line in shown[1:]} == {"median", "99 %"}
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    assert browser.run("document.querySelector('.tip') === null")
    browser.run("document.querySelector('#entropy svg').focus()")
    browser.key("ArrowRight", 39)
    assert browser.run("document.querySelector('.tip').textContent").endswith("entropy")
    time.sleep(1.2)
    assert browser.run("document.querySelector('#entropy svg').contains(document.querySelector('.cursor'))"), "redrawn"
    browser.key("Escape", 27)
    assert browser.run("document.querySelector('.tip') === null")
    assert browser.errors == []


def test_dangerous_buttons_ask_first_and_work_by_keyboard(
    browser: Browser, url: str, client: httpx.Client, service: Service
) -> None:
    send(client, 40)
    until(lambda: service.writer.report().counters.waiting == 0)
    browser.open(f"{url}/#token={quote(TOKEN)}")
    browser.until("document.getElementById('learned').textContent === '40'")
    browser.run("document.getElementById('reset').focus()")
    browser.key("Enter", 13)
    browser.until("document.getElementById('reset').textContent === 'Reset?'")
    assert service.adapter.samples == 40
    browser.key("Enter", 13)
    browser.until("document.getElementById('message').textContent.includes('source model')")
    assert service.adapter.samples == 0


def test_a_wrong_token_gets_a_sentence(browser: Browser, url: str, service: Service) -> None:
    browser.open("about:blank")
    browser.open(f"{url}/#token=wrong")
    browser.until("document.getElementById('status').textContent === 'learning'")
    browser.click("pause")
    browser.until("document.getElementById('message').textContent.includes('token')")
    assert not service.writer.report().paused
    browser.errors.clear()  # the browser itself notes answers of 401


def test_a_phone_needs_no_sideways_scrolling(url: str, client: httpx.Client) -> None:
    send(client, 20)
    with Browser(width=360, height=740, dark=True) as phone:
        phone.open(f"{url}/#token={quote(TOKEN)}")
        phone.until("document.querySelectorAll('#bank img').length > 0")
        assert phone.run("document.documentElement.scrollWidth") <= 360
        assert phone.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"


def test_the_interface_is_described_without_a_net(browser: Browser, url: str) -> None:
    browser.open(f"{url}/docs")
    browser.until("document.querySelectorAll('#routes li').length >= 12")
    assert "POST /predict" in browser.run("document.body.innerText")
    assert browser.errors == []
