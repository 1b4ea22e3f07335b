"""Learning on a budget: a call makes so many updates, and what waits is neither lost nor changed."""

from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK, batches, rows, states
from torch import Tensor

import resitta
from resitta.checkpoint.tree import same
from resitta.fleets.learning import ROOM


def test_a_call_makes_no_more_updates_than_it_may_and_none_is_lost() -> None:
    fleet = resitta.fleet(small_network(), "resitta", updates_per_call=1, **QUICK)
    total = 0
    for images, names in batches(streams=5, length=8):
        fleet(images, names)
        now = sum(row.updates or 0 for row in rows(fleet))
        assert now <= total + 1
        total = now
    assert total == 5, "all are due in the fourth call; one updates in each call from there on"
    fleet.sync()
    assert [(row.samples, row.updates, row.waiting) for row in rows(fleet)] == [(16, 2, 0)] * 5


def test_samples_that_wait_are_learned_in_order_with_the_logits_they_got() -> None:
    fleet = resitta.fleet(small_network(), "resitta", updates_per_call=1, **QUICK)
    fed = batches(streams=3, length=5)
    logits = [fleet(images, names) for images, names in fed]
    assert any(row.waiting for row in rows(fleet))
    fleet.sync()
    for index in range(3):
        adapter = resitta.adapt(fleet.source.model, "resitta", **QUICK)
        for (images, _), answers in zip(fed, logits, strict=True):
            adapter.learn_from(images[index::3], answers[index::3])
        mine = fleet[f"s{index}"].adapter
        assert same(mine.learner.state_dict(), adapter.learner.state_dict())
        assert (mine.samples, mine.generator.get_state().tolist()) == (10, adapter.generator.get_state().tolist())


def test_the_caller_may_overwrite_images_and_logits_that_wait() -> None:
    fleets = [resitta.fleet(small_network(), "resitta", updates_per_call=1, **QUICK) for _ in range(2)]
    calls: list[tuple[Tensor, str | list[str]]] = [(images, names) for images, names in batches(streams=12, length=4)]
    calls += [
        (stream(3, seed=number), f"s{number}") for number in range(11, 5, -1)
    ]  # a batch of one stream is not rearranged
    for fleet, overwrites in zip(fleets, (False, True), strict=True):
        for images, streams in calls:
            given = images.clone()
            logits = fleet(given, streams)
            if overwrites:
                given.fill_(0.5)
                logits.zero_()
    for fleet in fleets:
        fleet.sync()
    assert same(states(fleets[0]), states(fleets[1]))


def test_the_label_prior_sees_samples_that_wait_once_and_its_feedback_is_learned() -> None:
    still: dict[str, Any] = {"norm": "rbn", "nu_b": 0.0, "nu_m": 0.0, **QUICK}  # learning changes no prediction
    pool = stream(600)
    runs = pool[resitta.adapt(small_network(), "source")(pool).argmax(dim=1).argsort(stable=True)]
    options: dict[str, Any] = {"label_prior": "temporal", "feedback": True}
    fleets = [
        resitta.fleet(small_network(), "resitta", updates_per_call=budget, **options, **still) for budget in (2, None)
    ]
    waited = False
    for images in torch.split(runs, 4):
        for fleet in fleets:
            fleet(images.repeat_interleave(3, dim=0), ["a", "b", "c"] * 4)
        waited = waited or any(row.waiting for row in rows(fleets[0]))
    assert waited
    fleets[0].sync()
    prior = fleets[0]["a"].stats.label_prior
    assert prior is not None
    assert prior.corrected > 100
    for name in "abc":
        mine, its = (fleet[name].adapter for fleet in fleets)
        assert same(mine.learner.state_dict(), its.learner.state_dict())
        assert mine.prior is not None
        assert its.prior is not None
        assert same(mine.prior.state_dict(), its.prior.state_dict())
        assert mine.mean_entropy == pytest.approx(its.mean_entropy)


def test_too_many_waiting_samples_are_dropped_and_counted() -> None:
    fleet = resitta.fleet(small_network(), "tribe", updates_per_call=1)
    for step in range(4):
        fleet(stream(120, seed=step), [f"s{number % 3}" for number in range(120)])
    assert 0 < sum(row.waiting for row in rows(fleet)) <= ROOM
    assert sum((row.samples or 0) + row.waiting + row.dropped for row in rows(fleet)) == 480
    assert sum(row.dropped for row in rows(fleet)) >= 480 - ROOM - 4 * 40


def test_a_batch_of_one_stream_is_learned_from_in_the_call_unless_others_are_due() -> None:
    fleet, adapter = resitta.fleet(small_network(), "tide"), resitta.adapt(small_network(), "tide")
    for images in torch.split(stream(64), 16):
        assert torch.equal(fleet["a"](images), adapter(images))
    fleet(stream(40), [f"s{number}" for number in range(40)])
    fleet["s39"](stream(4))
    assert fleet.stats["s39"].waiting == 5
    fleet.sync()
    assert fleet.stats["s39"].samples == 5
