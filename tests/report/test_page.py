import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord, environment
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import BadData
from resitta.report.axes import Span
from resitta.report.page import BankItem, Strip, write_page
from resitta.report.paper_comparison import Comparison
from resitta.report.timeline import Timeline

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects text and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture
def full(make_run: MakeRun, make_identity: MakeIdentity, tmp_path: Path) -> str:
    """A page with every part, full of names that are dangerous unless escaped."""
    about = {"domains": CORRUPTIONS, "samples": 1500, "identity": make_identity(), "device_memory_mb": 1457.0}
    settings = {"source": {}, "tent": {"lr": 0.001}}
    runs = [
        make_run(
            name, PAPER.table1["tent"].errors, seed=seed, settings=settings.get(name, {"<key>": "<value>"}), **about
        )
        for name in ("source", "tent", "<script>alert(1)</script>", "resitta")
        for seed in (1, 2)
    ]
    image = np.zeros((8, 8, 3), np.uint8)
    path = write_page(
        tmp_path / "new" / "page.html",
        title="<title>",
        runs=runs,
        intro="One & two.\n\n<em>Three</em>.",
        strips=[Strip("<strip>", [image, image], ["<one>"])],
        timeline=Timeline(np.array([0, 0, 1]), np.array([1, 0, 1]), np.array([0, 0, 0]), (Span(0, 3, "<fog>"),)),
        changed=[Strip("<changed>", [image], ["<class> → <other>"])],
        bank=[BankItem(image, "<label>", 12, 0.25)],
        classes=["<class>", "<other>"],
        paper=PAPER.table1,
        comparisons=[
            Comparison(title="<t>", name="<n>", values=("<v>",), ours=(22.0,), theirs=(None,), dataset="cifar10")
        ],
        environment={**environment(), "<env>": "<x>"},
        commands=["resitta demo > out && echo '<done>'"],
    )
    return path.read_text("utf-8")


def test_every_string_is_escaped_and_every_tag_closed(full: str) -> None:
    reader = Reader(full)
    tags = [tag for tag, _ in reader.seen]
    assert tags.count("script") == 1
    assert not set(tags) & {"em", "strip", "one", "label", "class", "key", "value", "env", "x", "done"}
    for text in ("<title>", "<em>Three</em>.", "<strip>", "<one>", "<label>", "<key>", "<value>", "<env>", "<x>"):
        assert text in reader.texts
    assert "resitta demo > out && echo '<done>'" in reader.texts


def test_nothing_is_loaded_from_elsewhere(full: str) -> None:
    for tag, attributes in Reader(full).seen:
        for name in ("src", "href", "data", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), (tag, value)
    assert not re.search(r"url\(|@import|@font-face|fetch\(|XMLHttpRequest", full)
    addresses = set(re.findall(r"https?://[^\"'\s<]+", full))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of the format, not a file


def test_numbers_reach_the_page(full: str) -> None:
    texts = Reader(full).texts
    assert "86.0 %" in texts  # the average error of the hero
    assert "3,000" in texts  # 1500 samples in half a second
    assert "12 old" in texts
    assert "H 0.25" in texts
    assert {"12.5", "0.75"} <= set(texts)  # calibration, likelihood
    assert "+42.5" in texts  # the source against the paper
    assert "No paper numbers for ResiTTA: <key>=<value>." in texts


def test_a_label_prior_is_shown_at_work(full: str, make_run: MakeRun, tmp_path: Path) -> None:
    texts = Reader(full).texts
    assert "The label prior at work" in texts
    assert "<changed>" in texts
    assert "<class> → <other>" in texts
    place = texts.index("<fog>", texts.index("The figure as a table: every run of a class"))
    cells = [text for text in texts[place - 2 :] if text]
    assert cells[:6] == ["1", "<fog>", "<class>", "2", "1 right, 1 <other>", "2 right"]
    without = write_page(tmp_path / "page.html", title="t", runs=[make_run()]).read_text("utf-8")
    assert "label prior" not in without


def test_memory_is_not_shown(full: str) -> None:
    """It grows with what ran before in the process, so that no number belongs to a method."""
    assert not any("1,457" in text or "memory MB" in text for text in Reader(full).texts)


def test_the_title_and_the_hero_can_be_chosen(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("resitta", (40.0, 40.0)), make_run("mine", title="My method")]
    html = write_page(tmp_path / "page.html", title="Trial", runs=runs, highlight="mine").read_text("utf-8")
    assert "My method reaches an average error of 15.0\u00a0%" in Reader(html).texts
    assert "average error of My method" in Reader(html).texts
    assert "Trial" in Reader(html).texts


def test_sweeps_without_the_paper_say_nothing_about_it(make_run: MakeRun, tmp_path: Path) -> None:
    about = {"title": "Sweep of eta", "name": "eta", "values": ("0", "1"), "dataset": "cifar10"}

    def page(*theirs: float | None) -> str:
        found = Comparison(ours=(22.0, 21.0), theirs=theirs, **about)  # type: ignore[arg-type]
        return write_page(tmp_path / "p.html", title="t", runs=[make_run()], comparisons=[found]).read_text("utf-8")

    assert "The paper's curve is for cifar10" in page(1.0, 2.0)
    assert "paper" not in page(None, None).lower()


def test_figures_and_tables_can_be_named_and_reached(full: str) -> None:
    seen = Reader(full).seen
    assert all(attributes.get("aria-label") for tag, attributes in seen if tag == "svg")
    assert all(attributes.get("alt") for tag, attributes in seen if tag == "img")
    scrolling = [attributes for _, attributes in seen if attributes.get("class") == "scroll"]
    assert scrolling
    assert all(attributes.get("tabindex") == "0" and attributes.get("aria-label") for attributes in scrolling)


def test_a_single_run_is_enough(make_run: MakeRun, tmp_path: Path) -> None:
    no_drift: dict[str, Any] = {"drift_at": (), "drift_over_time": (), "drift_per_layer": {}}
    run = make_run("source", settings={}, bank_per_class=(), error_over_time=(), **no_drift)
    html = write_page(tmp_path / "page.html", title="t", runs=[run]).read_text("utf-8")
    texts = Reader(html).texts
    assert "Source reaches an average error of 15.0\u00a0%" in texts
    assert "It has none." in texts
    assert "Nothing was measured." in texts
    assert "How far the statistics drift" not in texts
    assert "Against the paper" not in texts


def test_domains_begin_where_the_record_says(make_run: MakeRun, tmp_path: Path) -> None:
    def start_of_fog(*borders: int) -> str:
        html = write_page(tmp_path / "page.html", title="t", runs=[make_run(borders=borders)]).read_text("utf-8")
        return next((a["x"] or "" for t, a in Reader(html).seen if t == "rect" and a.get("data-name") == "fog"), "")

    assert start_of_fog(0, 50) not in ("", start_of_fog(0, 100))
    assert start_of_fog() == "", "mixed domains have no borders"


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no runs"):
        write_page(tmp_path / "page.html", title="t", runs=[])
    assert not (tmp_path / "page.html").exists()


def test_heat_is_the_share_of_the_highest_error(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("bn", (80.0, 10.0)), make_run("tent", (20.0, 0.0), seed=0), make_run("tent", (20.0, 1.0), seed=1)]
    html = write_page(tmp_path / "page.html", title="t", runs=runs).read_text("utf-8")
    cells = re.findall(r'<td class="(\w*)" style="--heat:([\d.]+)"><b>([\d.]+)</b>(?:<small>(.*?)</small>)?</td>', html)
    assert cells == [
        ("second", "1.00", "80.0", ""),
        ("second", "0.12", "10.0", ""),
        ("second", "0.56", "45.0", ""),
        ("best", "0.25", "20.0", "±0.0"),
        ("best", "0.01", "0.5", "±0.7"),
        ("best", "0.13", "10.2", "±0.4"),
    ]


def test_errors_of_zero_are_cold(make_run: MakeRun, tmp_path: Path) -> None:
    html = write_page(tmp_path / "page.html", title="t", runs=[make_run("bn", (0.0, 0.0))]).read_text("utf-8")
    assert set(re.findall(r"--heat:([\d.]+)", html)) == {"0.00"}


def test_differences_only_where_the_paper_has_the_method(full: str) -> None:
    table = full[full.index("Domain by domain") :]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>', table[: table.index("</table>")])
    assert rows == ["Source", "TENT"]
