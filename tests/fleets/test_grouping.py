import pytest
import torch
from tests.conftest import stream

from resitta.errors import BadSetting
from resitta.fleets.grouping import grouped


def test_images_of_a_stream_come_together_in_their_order_and_go_back() -> None:
    images, names = stream(7), ["b", "a", "b", "c", "a", "b", "c"]
    order, parts = grouped(names, 7)
    for name, part in parts.items():
        own = [place for place, other in enumerate(names) if other == name]
        assert torch.equal(images[order][part], images[own])
    assert torch.equal(torch.empty_like(images).index_copy_(0, order, images[order]), images)


def test_one_name_is_that_of_all_and_a_list_must_have_one_for_each() -> None:
    assert grouped("gate", 3)[1] == {"gate": slice(0, 3)}
    with pytest.raises(BadSetting, match="there are 3 images and 2 names of streams"):
        grouped(["a", "b"], 3)
    with pytest.raises(BadSetting, match="a stream's name must be"):
        grouped(["a", ""], 2)
