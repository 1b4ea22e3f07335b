"""How streams look, and which of them look alike."""

import numpy as np
import pytest
import torch
from tests.conftest import small_network, stream

import resitta
from resitta.errors import BadState
from resitta.fleets.nearest import Appearance, copy_networks, nearest
from resitta.training.domain_shift import image_statistics


def test_it_averages_over_all_images_however_they_come() -> None:
    images = stream(300)
    rows = image_statistics(images).double().numpy()
    for size in (1, 7, 300):
        looks = Appearance()
        for some in torch.split(images, size):
            looks = looks.add(some)
        assert looks.seen == 300
        np.testing.assert_allclose(looks.mean, rows.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(looks.variance, rows.var(axis=0), rtol=1e-4)


def test_images_that_are_not_finite_do_not_count() -> None:
    images = stream(8)
    images[3] = torch.nan
    assert Appearance().add(images).seen == 7
    assert Appearance().add(images[3:4]).seen == 0


def test_the_nearest_is_within_the_bound_or_none() -> None:
    grey, light = torch.full((4, 3, 8, 8), 0.5), torch.full((4, 3, 8, 8), 0.58)
    known = {"grey": Appearance().add(grey), "light": Appearance().add(light), "new": Appearance()}
    assert nearest(Appearance().add(light + 0.01), known) == "light"
    assert nearest(Appearance().add(grey + 0.01), known) == "grey"
    assert nearest(Appearance().add(light + 0.2), known) is None
    assert nearest(Appearance(), known) is None
    assert nearest(Appearance().add(grey), {}) is None


def test_it_survives_a_file_and_refuses_other_values() -> None:
    looks = Appearance().add(stream(8))
    again = Appearance.of(looks.state())
    assert again.seen == 8
    np.testing.assert_array_equal(again.variance, looks.variance)
    assert Appearance.of(Appearance().state()).seen == 0
    for change in ({"mean": torch.zeros(3)}, {"variance": -torch.ones(4)}, {"seen": 0}):
        with pytest.raises(BadState, match="the appearance of a stream"):
            Appearance.of({**looks.state(), **change})


def test_networks_are_copied_without_memory_and_counters() -> None:
    known = resitta.adapt(small_network(), "resitta", capacity=8, update_every=8)
    known(stream(64))
    new = known.sibling()
    copy_networks(known.learner, new.learner)
    for (name, mine), its in zip(new.learner.state_dict().items(), known.learner.state_dict().values(), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, its), name
            assert mine.data_ptr() != its.data_ptr()
    memory = new.learner.memory()
    assert memory is not None
    assert (new.samples, new.learner.updates, memory.size, memory.clock) == (0, 0, 0, 0)
    before = known.state_dict()
    new(stream(64, seed=5))
    assert all(torch.equal(v, before[k]) for k, v in known.state_dict().items() if isinstance(v, torch.Tensor))
