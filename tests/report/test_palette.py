import re
from collections.abc import Callable
from importlib import resources

import pytest

from resitta.bench.experiments import METHODS
from resitta.bench.record import RunRecord
from resitta.errors import UnknownName
from resitta.report.groups import grouped
from resitta.report.palette import ACCENT, NEUTRAL, colours, hero

MakeRun = Callable[..., RunRecord]


def test_every_known_method_has_a_colour_of_its_own(make_run: MakeRun) -> None:
    groups = grouped([make_run(name) for name in METHODS])
    chosen = colours(groups)
    assert len(set(chosen.values())) == len(METHODS)
    assert chosen["ResiTTA"] == ACCENT
    assert chosen["Source"] == NEUTRAL


def test_colours_do_not_depend_on_the_company(make_run: MakeRun) -> None:
    one = colours(grouped([make_run("resitta"), make_run("tent")]))
    two = colours(grouped([make_run("source"), make_run("bn"), make_run("tent"), make_run("resitta")]))
    assert one["TENT"] == two["TENT"]


def test_variants_and_strangers_take_what_is_left(make_run: MakeRun) -> None:
    runs = [make_run("resitta", settings={"eta": eta}) for eta in (0.01, 0.05)] + [make_run("mine")]
    assert len(set(colours(grouped(runs)).values())) == 3
    assert len(colours(grouped([make_run(f"m{i}") for i in range(20)]))) == 20


def test_the_hero_is_resitta_or_the_best_that_adapts(make_run: MakeRun) -> None:
    source, bn, tent = make_run("source", (1.0, 1.0)), make_run("bn", (9.0, 9.0)), make_run("tent", (5.0, 5.0))
    assert hero(grouped([source, bn, make_run("resitta", (50.0, 50.0))])).method == "resitta"
    assert hero(grouped([source, bn, tent])).method == "tent"
    assert hero(grouped([source])).method == "source"


def test_a_row_or_method_can_be_highlighted(make_run: MakeRun) -> None:
    runs = [make_run("mine", (50.0, 50.0), title="My method"), make_run("resitta")]
    runs += [make_run("tent", (lr, lr), settings={"lr": lr}) for lr in (0.5, 0.1)]
    groups = grouped(runs)
    assert hero(groups).method == "resitta"
    for name in ("mine", "MINE", "my method"):
        assert hero(groups, name).method == "mine"
    assert hero(groups, "tent").label == "TENT lr=0.1", "the best of its rows"
    assert hero(groups, "tent lr=0.5").label == "TENT lr=0.5"
    assert colours(groups, hero(groups, "mine"))["My method"] == ACCENT
    assert colours(groups, hero(groups, "mine"))["ResiTTA"] != ACCENT
    with pytest.raises(UnknownName, match="no row is called 'tant'. Known: My method, "):
        hero(groups, "tant")


def test_the_style_sheet_defines_every_colour_for_light_and_dark(make_run: MakeRun) -> None:
    folder = resources.files("resitta.report")
    sheets = [folder.joinpath(name).read_text("utf-8") for name in ("base.css", "page.css")]
    light, dark = ("".join(css.split("prefers-color-scheme: dark")[place] for css in sheets) for place in (0, 1))
    for colour in colours(grouped([make_run(name) for name in METHODS])).values():
        found = re.fullmatch(r"var\((--\w+), (#\w+)\)", colour)
        assert found
        assert f"{found[1]}: {found[2]};" in light
        assert f"{found[1]}: #" in dark
