import numpy as np
import pytest

from resitta.data.datasets.base import Indices, checked_indices, checked_labels, checked_severity
from resitta.errors import BadData, BadSetting


def test_no_indices_are_fine() -> None:
    assert checked_indices([], 3, "set").shape == (0,)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([-1], "set has images 0 to 2, but image -1 was asked for"),
        (np.array([0, 3], np.uint8), "image 3 was asked for"),
        (np.array([[0]]), "not by 2-d int64"),
        (np.array([0.0]), "not by 1-d float64"),
        (np.array([True, False]), "not by 1-d bool"),
    ],
)
def test_bad_indices(indices: Indices, message: str) -> None:
    with pytest.raises(BadData, match=message):
        checked_indices(indices, 3, "set")


def test_labels_become_int64() -> None:
    labels, classes = checked_labels(np.array([3, 0], np.uint8), 2, None, "set")
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 0]
    assert classes == 4


def test_classes_may_exceed_the_labels() -> None:
    assert checked_labels([0, 1], 2, 10, "set")[1] == 10


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0], None, "set has 2 images but 1 labels"),
        ([0.0, 1.0], None, "not 1-d float64"),
        ([[0], [1]], None, "not 2-d int64"),
        ([0, -1], None, "set has labels -1 to 0"),
        ([0, 3], 3, "set has labels 0 to 3; they must lie in 0 to 2"),
    ],
)
def test_bad_labels(labels: list[int], classes: int | None, message: str) -> None:
    with pytest.raises(BadData, match=message):
        checked_labels(labels, 2, classes, "set")


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(BadData, match="holds no images"):
        checked_labels([], 0, None, "set")


@pytest.mark.parametrize("severity", [0, 6, "5", None, 2.5])
def test_bad_severity(severity: int) -> None:
    with pytest.raises(BadSetting, match="severity must be 1, 2, 3, 4 or 5"):
        checked_severity(severity)
