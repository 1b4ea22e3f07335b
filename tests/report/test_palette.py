import re
from collections.abc import Callable
from importlib import resources
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from resitta.bench.experiments import METHODS
from resitta.bench.record import RunRecord
from resitta.errors import UnknownName
from resitta.report.groups import grouped
from resitta.report.palette import ACCENT, NEUTRAL, class_colour, colours, hero

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
    of_classes = [class_colour(label) for label in range(10)]
    assert len(set(of_classes)) == 10
    for colour in [*colours(grouped([make_run(name) for name in METHODS])).values(), *of_classes]:
        found = re.fullmatch(r"var\((--\w+), (#\w+)\)", colour)
        assert found
        assert f"{found[1]}: {found[2]};" in light
        assert f"{found[1]}: #" in dark


COLOUR_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Machado, Oliveira and Fernandes, 2009: matrices for linear RGB."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, two: str) -> float:
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, two))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_colours_of_classes_differ_and_stand_out(place: int) -> None:
    folder = resources.files("resitta.report")
    base, page = (folder.joinpath(name).read_text("utf-8") for name in ("base.css", "page.css"))
    ground = re.findall(r"--ground: (#\w{6});", base)[place]
    found = re.findall(r"--k\d: (#\w{6});", page)[10 * place : 10 * place + 10]
    assert len(found) == 10
    assert min(contrast(colour, ground) for colour in found) >= 3
    for matrix in COLOUR_BLINDNESS.values():
        seen = [lab(np.asarray(matrix) @ linear(colour)) for colour in found]
        assert min(float(np.linalg.norm(one - two)) for one, two in combinations(seen, 2)) >= 23
