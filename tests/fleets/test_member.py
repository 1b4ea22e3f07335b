"""What a fleet keeps of one stream."""

import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK

import resitta
from resitta.fleets.member import Member, Waiting


def member() -> Member:
    made = Member("a")
    made.enter(resitta.adapt(small_network(), "resitta", **QUICK), 0)
    return made


def test_the_network_is_read_again_only_after_a_step_that_may_have_changed_it() -> None:
    one = member()
    assert one.read_network() is one.here.learner.exportable_network()
    assert one.read_network() is None
    one.here(stream(4))
    assert one.read_network() is None
    one.here(stream(4))
    assert one.read_network() is not None
    one.here.reset()
    assert one.read_network() is not None


def test_catching_up_stops_before_a_second_update() -> None:
    one, logits = member(), torch.randn(4, 5)
    one.waiting.extend(Waiting(stream(4, seed=seed), logits, logits) for seed in range(5))
    assert one.waiting_samples == 20
    assert [one.catch_up(), len(one.waiting)] == [1, 2]
    assert one.here.samples == 12
    one.settle()
    assert (one.here.samples, one.here.learner.updates, one.waiting_samples) == (20, 2, 0)


def test_its_numbers_outlast_its_adapter() -> None:
    one = member()
    one.here(stream(16))
    drift = one.drift()
    assert drift > 0
    assert one.leave() == 0
    assert one.adapter is None
    assert (one.last.in_memory, one.last.samples, one.last.updates, one.last.drift) == (False, 16, 2, drift)


def test_a_file_is_out_of_date_after_a_step() -> None:
    saved = Member("a", saved=True)
    saved.enter(resitta.adapt(small_network(), "resitta", **QUICK), 0)
    assert not saved.changed
    saved.here(stream(1))
    assert saved.changed
