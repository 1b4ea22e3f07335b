from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from resitta.bench.protocol import GRADUAL, Protocol, open_domains
from resitta.data.corruptions import CORRUPTIONS, write_cifar_c
from resitta.data.datasets import ArrayImages, ImageSet
from resitta.errors import BadData, BadSetting, UnknownName
from resitta.names import OrderName


def sets_for(protocol: Protocol, n: int = 40) -> dict[tuple[str, int], ImageSet]:
    images = ArrayImages(np.zeros((n, 3, 8, 8), np.uint8), np.arange(n) % 4)
    return dict.fromkeys(protocol.domains(), images)


def test_the_default_is_the_papers_protocol() -> None:
    protocol = Protocol()
    assert protocol.domains() == [(name, 5) for name in CORRUPTIONS]
    assert (protocol.order, protocol.delta, protocol.within_slot, protocol.batch_size) == ("ptta", 0.1, "blocks", 64)


def test_courses() -> None:
    gradual = Protocol(corruptions=("fog",), course="gradual")
    assert [severity for _, severity in gradual.domains()] == list(GRADUAL)
    stream = gradual.stream(sets_for(gradual), 1)
    assert stream.names[:3] == ("fog 1", "fog 2", "fog 3")
    recurring = Protocol(corruptions=("fog", "snow"), course="recurring", visits=3)
    stream = recurring.stream(sets_for(recurring), 1)
    assert stream.names == ("fog", "snow") * 3
    assert len(stream) == 6 * 40
    assert stream.borders == tuple(range(0, 240, 40))


@pytest.mark.parametrize("order", get_args(OrderName))
def test_every_order_brings_every_image_once(order: str) -> None:
    protocol = Protocol(corruptions=("fog", "snow"), order=order)  # type: ignore[arg-type]
    stream = protocol.stream(sets_for(protocol), 1)
    pairs = set(zip(stream.domain.tolist(), stream.index.tolist(), strict=True))
    assert len(stream) == len(pairs) == 80
    assert (stream.borders == ()) == (order == "mixed")


def test_slots_are_those_of_ptta_with_their_images_shuffled() -> None:
    ptta = Protocol(corruptions=("fog",))
    slots, mixed = replace(ptta, order="slots"), replace(ptta, within_slot="shuffled")
    orders = [protocol.stream(sets_for(protocol), 3).index.tolist() for protocol in (ptta, slots, mixed)]
    assert orders[0] != orders[1] == orders[2]


def test_short_names_become_full_ones_and_wrong_ones_are_refused() -> None:
    assert Protocol(corruptions=("jpeg", "clean")).corruptions == ("jpeg_compression", "clean")
    with pytest.raises(UnknownName, match="fogg"):
        Protocol(corruptions=("fogg",))
    with pytest.raises(BadSetting, match="at least one corruption"):
        Protocol(corruptions=())
    with pytest.raises(BadSetting, match="severity must be <= 5, found 6"):
        Protocol(severity=6)
    with pytest.raises(BadSetting, match="order must be one of"):
        Protocol(order="random")  # type: ignore[arg-type]


def test_domains_of_a_corrupted_set_are_read_and_of_clean_images_are_made(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = np.arange(12) % 3
    write_cifar_c(tmp_path / "corrupted", pixels, labels, corruptions=["contrast", "brightness"])
    protocol = Protocol(corruptions=("contrast", "brightness"))
    read = open_domains(protocol, tmp_path / "corrupted", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    from PIL import Image

    for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (tmp_path / "clean" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "clean" / str(label) / f"{index:02d}.png")
    made = open_domains(protocol, tmp_path / "clean", cache=tmp_path / "cache", size=32)
    by_label = np.argsort(labels, kind="stable")
    for domain in protocol.domains():
        assert torch.equal(made[domain].read(range(12)), read[domain].read(by_label))


def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="does not exist"):
        open_domains(Protocol(), tmp_path / "nowhere", cache=tmp_path)
