"""Weights are handed over as a whole: all tensors of one put, or none."""

import threading
from itertools import count

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.methods.source import SourceLearner
from resitta.norm.bn_layers import bn_layers
from resitta.runtime.weight_handoff import PublishedNetwork, WeightHandoff, changes, weights_of


def test_only_the_newest_put_is_taken_and_only_once() -> None:
    source, target = [torch.zeros(3), torch.zeros(2)], [torch.ones(3), torch.ones(2)]
    place = target[0].data_ptr()
    weights = WeightHandoff(target)
    assert not weights.take()
    for version in (5, 7):
        for tensor in source:
            tensor.fill_(version)
        weights.put(source, version)
    assert (weights.version, weights.newest) == (0, 7)
    source[0].fill_(9.0)
    assert weights.take()
    assert [tensor.tolist() for tensor in target] == [[7.0] * 3, [7.0] * 2]
    assert target[0].data_ptr() == place, "recordings of the target stay valid"
    assert not weights.take()
    assert (weights.version, weights.newest) == (7, 7)


def test_nothing_is_taken_in_the_middle_of_a_put(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = [torch.ones(3), torch.ones(2)], [torch.zeros(3), torch.zeros(2)]
    weights, copy, middles = WeightHandoff(target), torch._foreach_copy_, []

    def slowly(to: list[Tensor], values: list[Tensor]) -> None:
        copy(to[:1], values[:1])
        if values is source:
            middles.append(weights.take())
        copy(to[1:], values[1:])

    monkeypatch.setattr(torch, "_foreach_copy_", slowly)
    weights.put(source, 1)
    weights.put(source, 2)  # the first one was not taken yet, and half of it is gone
    assert middles == [False, False]
    assert weights.take()
    assert [tensor.tolist() for tensor in target] == [[1.0] * 3, [1.0] * 2]


def test_two_threads_never_mix_two_puts() -> None:
    source, target = ([torch.zeros(5000) for _ in range(20)] for _ in range(2))
    weights, stop = WeightHandoff(target), threading.Event()

    def write() -> None:
        for version in count(1):
            torch._foreach_zero_(source)
            torch._foreach_add_(source, version)
            weights.put(source, version)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    try:
        while taken < 200:
            taken += weights.take()
            assert len({float(value) for tensor in target for value in (tensor[0], tensor[-1])}) == 1
    finally:
        stop.set()
        writer.join()


def test_what_is_read_is_the_newest_version_and_a_copy() -> None:
    weights = WeightHandoff([torch.zeros(2)])
    weights.put([torch.ones(2)], 4)
    version, (tensor,) = weights.read()
    weights.put([torch.full((2,), 2.0)], 5)
    assert (version, tensor.tolist(), weights.read()[0]) == (4, [1.0, 1.0], 5)


# --- networks ---------------------------------------------------------------------------------------------------------


def published(adapter: resitta.Adapter) -> PublishedNetwork:
    front = PublishedNetwork.of(adapter)
    assert front is not None
    return front


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def test_a_published_network_predicts_what_the_adapter_predicts_and_shares_frozen_weights(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    front = published(adapter)
    for seed in range(3):
        adapter(images(8, seed))
        front.weights.put(weights_of(adapter), seed)
        logits, version = front.predict(images(4))
        assert version == seed
        with adapter.paused():
            assert torch.allclose(logits, adapter(images(4)), atol=1e-6)
    owned = list(front.network.parameters())
    assert 0 < len(owned) < len(list(model.parameters()))
    assert not any(tensor.requires_grad for tensor in owned)


def test_a_published_network_changes_only_when_it_predicts_again(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    front = published(adapter)
    before = front.network(images(4))
    adapter(images(8))
    front.weights.put(weights_of(adapter), 1)
    assert torch.equal(front.network(images(4)), before)
    assert not torch.equal(front.predict(images(4))[0], before)


class Shifting(SourceLearner):
    """Learns in a step of its own, so that no other network can predict for it while it does."""

    def step(self, images: Tensor) -> Tensor:
        next(iter(bn_layers(self.network.model)))[1].running_mean.add_(1)  # type: ignore[union-attr]
        self.updates += 1
        return self.predict(images)


def test_methods_that_learn_only_from_their_own_predictions_are_exported(model: nn.Module) -> None:
    assert PublishedNetwork.of(resitta.adapt(model, "tent")) is None
    adapter = resitta.adapt(model, "source")
    adapter.learner = Shifting(adapter.source)
    front = published(adapter)
    before, _ = front.predict(images(4))
    assert torch.allclose(before, model(images(4)), atol=1e-6)
    adapter.learner.step(images(4))
    front.weights.put(weights_of(adapter), 1)
    assert torch.allclose(front.predict(images(4))[0], adapter.export()(images(4)), atol=1e-6)
    assert not torch.allclose(front.predict(images(4))[0], before, atol=1e-6)
    assert torch.allclose(before, model(images(4)), atol=1e-6), "the source stays as it was"


def test_another_process_needs_only_what_differs(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    front, elsewhere = published(adapter), published(adapter)
    source = front.weights.read()[1]
    assert changes(source, front.weights.read()[1]) == {}
    adapter(images(64))
    front.weights.put(weights_of(adapter), 1)
    version, tensors = front.weights.read()
    different = changes(source, tensors)
    assert different
    elsewhere.weights.put([different.get(place, tensor) for place, tensor in enumerate(source)], version)
    assert torch.equal(elsewhere.predict(images(4))[0], front.predict(images(4))[0])
