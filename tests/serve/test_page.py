"""The live page in a real browser."""

import base64
import re
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from tests.serve.browser import CHROMIUM, Browser
from tests.serve.conftest import serving
from tests.serve.helpers import TOKEN, picture, until

from resitta.serve.app import create_app
from resitta.serve.service import Service

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


DROP = """(() => {
  const bytes = Uint8Array.from(atob("CONTENT"), (c) => c.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "dropped.png", { type: "TYPE" }));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
})()"""


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
    browser.until("document.querySelectorAll('#layers .bar').length === 2")
    browser.until("document.querySelectorAll('#classes .bar').length === 5")
    browser.until("document.querySelectorAll('.chart path[data-label]').length === 6")
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
    browser.until("document.querySelectorAll('.chart path[data-label]').length === 6")
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
        phone.until("document.querySelectorAll('#bank img').length > 0 && !!document.querySelector('#legend svg')")
        assert phone.run("document.documentElement.scrollWidth") <= 360
        assert phone.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
        phone.open(f"{url}/docs")
        phone.until("document.querySelectorAll('article').length >= 13")
        assert phone.run("document.documentElement.scrollWidth") <= 360


def test_an_empty_page_says_what_runs_and_what_to_send(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until("document.getElementById('runs').textContent.includes('model')")
    told = browser.text("runs")
    for words in (
        *("model Sequential, 5 classes, 10×10 pixels", "method resitta, capacity=16, update_every=16"),
        *("guard off", "device cpu, float32"),
    ):
        assert words in told
    assert f"'{url}/predict?top=5'" in browser.text("curl")
    browser.until("document.querySelectorAll('#legend .mark').length === 8")
    assert browser.run("document.getElementById('streams').hidden"), "there are no streams"
    time.sleep(1)
    assert browser.errors == []


def test_an_image_that_is_chosen_or_dropped_is_predicted(
    browser: Browser, url: str, service: Service, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(picture(seed=3))
    browser.open(url)
    browser.run("document.getElementById('file').focus()")
    assert browser.run("document.activeElement.id") == "file", "it is reached by keyboard"
    browser.choose("#file", tmp_path / "photo.png")
    browser.until("document.querySelectorAll('#top .bar').length === 5")
    wanted = r"^(ape|bee|cat|doe|elk), .*photo.png · version 0 · the model learns from it"
    assert re.search(wanted, browser.text("verdict"))
    assert browser.run("document.getElementById('thumbnail').naturalWidth") == 10
    browser.run(DROP.replace("CONTENT", base64.b64encode(picture(seed=4)).decode()).replace("TYPE", "image/png"))
    browser.until("document.getElementById('verdict').textContent.includes('dropped.png')")
    assert service.predicted == 2
    browser.run(DROP.replace("CONTENT", "bm90IGFuIGltYWdl").replace("TYPE", "text/plain"))
    browser.until("document.getElementById('verdict').textContent.includes('convert it')")
    browser.errors.clear()  # the browser itself notes answers of 415


def test_demo_traffic_moves_the_counters_and_the_chart_until_it_is_stopped(
    browser: Browser, url: str, service: Service
) -> None:
    browser.open(f"{url}/#token={quote(TOKEN)}")
    browser.until("document.getElementById('status').textContent === 'learning'")
    browser.click("demo")
    browser.until("document.querySelectorAll('#strip img').length === 8")
    browser.until("!!document.querySelector('#entropy path[data-label=entropy]')")
    browser.until("+document.getElementById('predicted').textContent > 32")
    browser.until("+document.getElementById('updates').textContent > 1")
    browser.click("pause")
    browser.until("document.querySelector('#entropy .mark.pause') && !!document.querySelector('#drift .count')")
    browser.until("document.getElementById('demo-note').textContent.includes('does not learn')")
    browser.click("demo")
    browser.until("document.getElementById('demo-note').textContent.startsWith('Stopped after')")
    browser.run("document.querySelector('[data-last=\"1h\"]').click()")
    browser.until("/10 min ago|in the last hour/.test(document.getElementById('confidence').textContent)")
    sent = int(re.findall(r"\d+", browser.text("demo-note"))[0])
    until(lambda: sent <= service.predicted <= sent + 8, seconds=2)
    predicted = service.predicted
    time.sleep(0.6)
    assert service.predicted == predicted
    assert browser.errors == []


def test_a_snapshot_with_its_time_can_be_rolled_back_to_by_clicks(
    browser: Browser, url: str, client: httpx.Client, service: Service
) -> None:
    send(client, 20)
    until(lambda: service.writer.report().version == 1)
    browser.open(f"{url}/#token={quote(TOKEN)}")
    browser.until("document.getElementById('learned').textContent === '20'")
    browser.click("snapshot")
    browser.until(r"/^1 · \d+:\d\d:\d\d/.test(document.getElementById('versions').selectedOptions[0].textContent)")
    browser.click("rollback")
    browser.until("document.getElementById('rollback').textContent === 'Roll back?'")
    browser.click("rollback")
    browser.until("document.getElementById('message').textContent === 'Rolled back to version 1, as version 2.'")
    browser.until("!!document.querySelector('#drift .mark.rollback')")
    assert browser.errors == []


def test_long_names_of_layers_give_way_in_the_middle(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until("document.querySelectorAll('#layers .bar').length > 0")
    found = browser.run(
        "drawBars(byId('layers'), [['backbone.stage3.block11.layer.0.bn2', 1, '1']], '');"
        "((n, t) => [n.title, n.textContent, t.textContent, n.querySelector('.head').scrollWidth >"
        " n.querySelector('.head').clientWidth,"
        " t.getBoundingClientRect().right <= n.getBoundingClientRect().right + 1])"
        "(...['', ' .tail'].map((part) => document.querySelector('#layers .name' + part)))"
    )
    name = "backbone.stage3.block11.layer.0.bn2"
    assert found == [name, name, ".bn2", True, True]


def test_streams_are_listed_where_there_are_some(browser: Browser, service: Service) -> None:
    known = {"samples": 640, "updates": 9, "mean_entropy": 0.5, "waiting": 0, "learning": True, "in_memory": False}
    rows = [{"name": f"camera-{number}", "drift": number / 100, **known} for number in range(60)]
    app = create_app(service, token=TOKEN)
    app.add_api_route("/streams", lambda: {"streams": [*rows, {"name": "<b>new</b>"}, None]})
    app.openapi_schema = None  # it is made again, with the new route
    table = "document.getElementById('streams-table')"
    with serving(app) as url:
        browser.open(url)
        browser.until(f"{table}.rows.length === 51")
        shown = browser.run(f"{table}.rows[1].innerText").split()
        assert shown == ["camera-59", "0.59", "0.5", "640", "9", "0", "learning,", "on", "disk"]
        assert browser.text("streams-note").startswith("50 of 61 streams")
        browser.run("document.getElementById('filter').focus()")
        browser.send("Input.insertText", text="new")
        browser.until(f"{table}.rows.length === 2")
        assert "<b>new</b>" in browser.run(f"{table}.rows[1].innerText")
        browser.open(f"{url}/docs")  # the route has no description
        browser.until("document.getElementById('GET-streams') !== null")
        assert browser.errors == []
        browser.open("about:blank")


def test_a_service_of_one_stream_is_not_asked_for_more(
    browser: Browser, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = service.stats
    monkeypatch.setattr(service, "stats", lambda: {**stats(), "fleet": False})
    app, asked = create_app(service, token=TOKEN), list[int]()
    app.add_api_route("/streams", lambda: asked.append(1))
    app.openapi_schema = None
    with serving(app) as url:
        browser.open(url)
        browser.until("document.getElementById('status').textContent === 'learning'")
        browser.until("served === false")
        assert browser.run("document.getElementById('streams').hidden")
        browser.open("about:blank")
    assert not asked
