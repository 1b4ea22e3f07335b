import pytest

from resitta.data.datasets.files import FileImages, labelled
from resitta.errors import BadData


def test_classes_are_sorted_as_names_not_as_paths() -> None:
    names, labels = labelled({"a": ["x.png"], "a-b": ["y.png"]}, "set")
    assert names == ["a/x.png", "a-b/y.png"]  # as whole paths, a-b/ would come before a/
    assert labels == [0, 1]


def test_no_file_may_be_another_kind() -> None:
    with pytest.raises(BadData, match=r"set/a/x\.csv is not an image file"):
        labelled({"a": ["x.csv"]}, "set")


def test_the_first_image_is_checked_at_once() -> None:
    with pytest.raises(BadData, match=r"set/a/x\.png is not a readable image"):
        FileImages(["a/x.png"], [0], lambda name: b"", origin="set")
