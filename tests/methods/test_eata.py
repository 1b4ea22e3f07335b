from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import LiteralETA, batches, literal_twin, network, norm_parameters
from torch import Tensor

from resitta import adapt, create
from resitta.errors import BadSetting
from resitta.training.source_statistics import SourceStatistics


def fisher_by_hand(kind: str, source: list[Tensor]) -> list[Tensor]:
    model = literal_twin(network(kind))
    squares: list[Any] = [0] * len(norm_parameters(model))
    for images in source:
        model.zero_grad()
        p = model(images).softmax(1)
        loss = sum(-p[row, int(p[row].argmax())].log() for row in range(len(p))) / len(p)
        loss.backward()
        grads = [p.grad for p in norm_parameters(model)]
        squares = [square + grad**2 for square, grad in zip(squares, grads, strict=True) if grad is not None]
    return [square / len(source) for square in squares]


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_steps_of_eata_by_hand(kind: str) -> None:
    source = [images * 0.5 + 0.2 for images in batches(96)]
    fisher = fisher_by_hand(kind, source)
    literal, free = (LiteralETA(kind, "sgd", epsilon=0.5, fisher=weights) for weights in (fisher, None))
    adapter = adapt(network(kind), "eata", epsilon=0.5, lr=0.01, beta=3.0, source=source)
    for images in batches():
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
        free.step(images)
    found = adapter.method.source  # type: ignore[attr-defined]
    assert isinstance(found, SourceStatistics)
    torch.testing.assert_close(list(found.tensors.values()), fisher, rtol=1e-9, atol=1e-12)
    assert max((a - b).abs().max().item() for a, b in zip(literal.trained, free.trained, strict=True)) > 1e-4


def test_without_images_eta_is_recommended() -> None:
    with pytest.raises(BadSetting, match="eata needs data of the source domain: .*; 'eta' works without"):
        adapt(network("batch"), "eata")


def test_presets_weigh_the_penalty() -> None:
    assert [create("eata", preset=name).beta for name in ("cifar10", "cifar100", "imagenet")] == [1, 1, 2000]  # type: ignore[attr-defined]


def test_without_penalty_it_is_eta() -> None:
    eata = adapt(network("batch"), "eata", beta=0.0, source=list(batches(32)), lr=0.01)
    eta = adapt(network("batch"), "eta", lr=0.01)
    for images in batches(128):
        assert torch.equal(eata(images), eta(images))
