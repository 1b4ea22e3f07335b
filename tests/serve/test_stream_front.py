import pytest
import torch
from tests.conftest import small_network
from tests.serve.helpers import SIZE, images

import resitta
from resitta.norm.bn_layers import bn_layers
from resitta.serve.stream_front import StreamFront
from resitta.training.network import Network


def front(most: int = 2) -> tuple[StreamFront, list[Network]]:
    """With networks that differ."""
    template = resitta.adapt(small_network(), "resitta")
    made = StreamFront.of(template, size=SIZE, most=most)
    assert made is not None
    networks = [template.source.fork("affine") for _ in range(3)]
    for factor, network in enumerate(networks, start=2):
        for _, layer in bn_layers(network.model):
            assert layer.weight is not None
            layer.weight.data.mul_(factor)
    return made, networks


def test_each_image_is_predicted_with_what_its_stream_has_published() -> None:
    made, networks = front()
    batch = images(3)
    for name, network, version in zip("ab", networks, (1, 2), strict=False):
        made.put(name, network, version)
    logits, version = made.predict(batch, ["b", "new", "a"])
    assert version == 2
    rows = (networks[1], made.one_pass.network, networks[0])
    with torch.no_grad():
        source = resitta.adapt(small_network(), "source")
        expected = [source(batch[1:2]) if place == 1 else rows[place](batch[place : place + 1]) for place in range(3)]
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_the_rows_used_least_recently_go_and_are_known_to_lack() -> None:
    made, networks = front(most=2)
    for name, network in zip("ab", networks, strict=False):
        made.put(name, network, 1)
    made.predict(images(1), ["a"])
    made.put("c", networks[2], 2)
    assert not made.lacks("c")
    made.predict(images(1), ["a"])
    assert [made.lacks(name) for name in "abc"] == [False, True, False]
    made.put("a", None, 3)
    assert made.lacks("a")
    made.predict(images(1), ["c"])
    assert made.lacks("a")
    made.put("b", networks[1], 4)
    made.predict(images(1), ["c"])
    assert [made.lacks(name) for name in "abc"] == [True, False, False]


@pytest.mark.parametrize("options", [{"method": "tent"}, {"method": "resitta", "label_prior": "temporal"}])
def test_there_is_none_where_predictions_need_the_learner(options: dict[str, str]) -> None:
    assert StreamFront.of(resitta.adapt(small_network(), **options), size=SIZE, most=2) is None  # type: ignore[arg-type]
