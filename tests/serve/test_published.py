import gc

import torch
from tests.serve.helpers import images
from torch import nn

import resitta
from resitta.serve.published import Published, Publisher
from resitta.training.network import Network


def network_of(published: Published) -> Network:
    assert published.network is not None
    return published.network


def test_a_copy_predicts_what_the_adapter_predicts_and_shares_the_frozen_weights(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    publisher = Publisher(adapter)
    for seed in range(3):
        adapter(images(8, seed))
        network = network_of(publisher.publish(seed))
        with adapter.paused():
            assert torch.allclose(network(images(4)), adapter(images(4)), atol=1e-6)
    owned = {tensor.data_ptr() for tensor in network.parameters()}
    assert 0 < len(owned) < len(list(model.parameters()))
    assert not any(tensor.requires_grad for tensor in network.parameters())


def test_a_copy_is_used_again_only_when_nobody_holds_it(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    publisher = Publisher(adapter)
    held = publisher.publish(1)
    before, place = network_of(held)(images(4)), id(network_of(held))
    adapter(images(8))
    second = publisher.publish(2)
    assert network_of(second) is not network_of(held)
    assert torch.equal(network_of(held)(images(4)), before)
    del held
    gc.collect()
    assert id(network_of(publisher.publish(3))) == place


def test_methods_that_cannot_learn_from_others_predictions_are_exported(model: nn.Module) -> None:
    assert Publisher(resitta.adapt(model, "source")).publish(0).network is not None
    assert Publisher(resitta.adapt(model, "tent")).publish(0).network is None
