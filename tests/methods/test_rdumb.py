from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import LiteralETA, batches, network

from resitta import adapt


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_by_hand(optimizer: Any) -> None:
    literal = LiteralETA("batch", optimizer, epsilon=0.5)
    adapter = adapt(network("batch"), "rdumb", epsilon=0.5, lr=0.01, reset_every=5, optimizer=optimizer)
    for number, images in enumerate(batches()):
        if number % 5 == 0:
            literal.begin()
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    assert adapter.stats.updates == 16


def test_before_a_reset_it_is_eta_and_after_it_only_the_count_is_left() -> None:
    rdumb = adapt(network("batch"), "rdumb", lr=0.01, reset_every=4)
    eta, first = adapt(network("batch"), "eta", lr=0.01), adapt(network("batch"), "rdumb", lr=0.01, reset_every=4)
    stream = list(batches(160))
    for images in stream[:4]:
        assert torch.equal(rdumb(images), eta(images))
    fresh = first.state_dict()
    same = {
        name: torch.equal(value, fresh[name]) for name, value in rdumb.state_dict().items() if torch.is_tensor(value)
    }
    assert all(same.values())
    with rdumb.paused():
        predicted = rdumb(stream[4])
    assert torch.equal(predicted, first(stream[4]))
    assert not torch.equal(predicted, eta(stream[4]))
    assert torch.equal(rdumb(stream[4]), predicted)
