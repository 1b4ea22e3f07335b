import json
from typing import Any

import pytest
from torch import nn

from resitta.conformance import tiny_network
from resitta.errors import BadSetting
from resitta.method import list_methods
from resitta.methods.recommend import (
    Bed,
    Cell,
    Measurements,
    Stream,
    closest_setup,
    measurements,
    nearest,
    normalisation,
    recommend,
)

BEDS = (
    Bed(name="small", title="Small", normalisation="BatchNorm", classes=10),
    Bed(name="large", title="Large", normalisation="BatchNorm", classes=1000),
    Bed(name="vit", title="ViT", normalisation="LayerNorm", classes=10),
)


def cell(method: str = "source", error: float = 50.0, **changes: Any) -> Cell:
    usual: dict[str, Any] = {
        "bed": "small", "order": "ptta", "course": "once", "severity": 5, "batch_size": 64, "images": 1500,
        "domains": 15, "seeds": [1],
    }  # fmt: skip
    return Cell(method=method, error=error, **{**usual, **changes})


def attention() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 7))


def test_the_lowest_error_wins_and_the_order_of_labels_is_apart() -> None:
    cells = (cell(), cell("tent", 80.0), cell("resitta", 37.0), cell("lame", 39.0), cell("cofa", 20.0))
    found = recommend(tiny_network(), Stream(), measured=Measurements(BEDS, cells))
    assert [each.method for each in found.cells] == ["cofa", "resitta", "lame", "source", "tent"]
    assert found.winner == cells[2]
    assert found.ordered_winner == cells[4]
    assert found.bed == BEDS[0]
    assert set(found.unmeasured) == set(list_methods()) - {each.method for each in cells}


def test_a_prior_is_use_of_the_order_of_labels() -> None:
    assert cell("tent", changed={"label_prior": "temporal"}).uses_label_order
    assert not cell("tent", changed={"label_prior": "none", "lr": 0.1}).uses_label_order
    assert not cell("a method of mine").uses_label_order
    assert cell("tent", changed={"lr": 0.1}).label == "tent lr=0.1"


@pytest.mark.parametrize("name", ["roid", "cmf"])
def test_roid_and_cmf_use_the_order_of_labels_unless_told_otherwise(name: str) -> None:
    assert cell(name).uses_label_order
    assert cell(name, changed={"prior_correction": "probabilities"}).uses_label_order
    assert not cell(name, changed={"prior_correction": "none"}).uses_label_order
    assert cell(name, changed={"prior_correction": "none", "label_prior": "temporal"}).uses_label_order


def test_methods_that_do_not_work_are_left_out_with_reasons() -> None:
    cells = (cell(bed="vit"), cell("rotta", 10.0, bed="vit"))
    found = recommend(attention(), Stream(), measured=Measurements(BEDS, cells))
    assert found.normalisation == "LayerNorm"
    assert found.bed == BEDS[2]
    assert [each.method for each in found.cells] == ["source"]
    assert "needs BatchNorm layers" in found.unsuitable["rotta"]
    assert {"t3a", "neo", "cofa", "lame"} <= set(found.unmeasured)


def test_a_model_without_a_linear_head_is_found_out() -> None:
    found = recommend(nn.Sequential(tiny_network(), nn.Softplus()), Stream(), measured=Measurements())
    assert "the model changes them afterwards" in found.unsuitable["neo"]
    assert "resitta" in found.unmeasured


@pytest.mark.parametrize(
    ("kind", "classes", "order", "name"),
    [
        ("BatchNorm", 5, "ptta", "small"),
        ("BatchNorm", 400, "ptta", "large"),
        ("BatchNorm", 400, "iid", "small"),  # the large one was not measured in this order
        ("LayerNorm", 1000, "iid", "vit"),
        ("GroupNorm", 10, "ptta", None),
    ],
)
def test_the_nearest_testbed(kind: str, classes: int, order: Any, name: str | None) -> None:
    measured = Measurements(BEDS, (cell(), cell(order="iid"), cell(bed="large")))
    bed = nearest(measured, kind, classes, Stream(order=order))
    assert (bed.name if bed else None) == name


def test_cells_of_one_setup_are_compared() -> None:
    cells = [
        cell(),
        cell("tent"),
        cell(batch_size=4),
        cell(batch_size=4, images=15000),
        cell(course="recurring", batch_size=200),
    ]
    assert closest_setup(cells, Stream()) == cells[:2]
    assert closest_setup(cells, Stream(batch_size=1)) == cells[3:4]
    assert closest_setup(cells, Stream(batch_size=1, course="recurring")) == cells[4:]
    assert closest_setup([], Stream()) == []


def test_kinds_of_normalisation() -> None:
    assert normalisation(nn.Sequential(nn.GroupNorm(1, 3), nn.BatchNorm2d(3, affine=False))) == "BatchNorm"
    assert normalisation(nn.Sequential(nn.GroupNorm(1, 3), nn.Linear(3, 3))) == "GroupNorm"
    assert normalisation(nn.InstanceNorm2d(3, affine=True)) == "another kind"


def test_a_stream_of_other_words_is_refused() -> None:
    with pytest.raises(BadSetting, match="batch_size must be >= 1, found 0"):
        Stream(batch_size=0)
    with pytest.raises(BadSetting, match="order must be one of 'ptta'"):
        Stream(order="random")  # type: ignore[arg-type]


def test_the_measurements_of_the_package_can_be_read() -> None:
    found = measurements()
    assert {each.bed for each in found.cells} == {bed.name for bed in found.beds}
    assert json.loads(json.dumps([dict(each.changed) for each in found.cells])) is not None
