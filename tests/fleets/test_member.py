"""What a fleet keeps of one stream."""

import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK

import resitta
from resitta.fleets.member import Member, Waiting, fit


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


def test_what_waited_is_learned_as_one_batch_of_one_size() -> None:
    one = member()
    for count, size in ((30, 10), (30, 10), (5, 10), (4, 12), (70, 12)):
        images, logits = stream(count, size=size), torch.randn(count, 5)
        one.waiting.append(Waiting(images, logits, logits))
    batches = []
    while one.waiting and one.waiting[0].images.shape[-1] == 10:
        before = one.here.samples
        one.catch_up()
        batches.append(one.here.samples - before)
    assert batches == [60, 5]
    assert [len(each.images) for each in one.waiting] == [4, 70]
    assert one.waiting_samples == 74
    assert not fit([one.waiting[0]], one.waiting[1])


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
