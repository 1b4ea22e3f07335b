import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resitta.errors import BadState
from resitta.training.domain_memory import DomainMemory

Floats = NDArray[np.float64]


def signature(number: float) -> Floats:
    return np.full(9, float(number))


def far(one: Floats, other: Floats) -> float:
    return float(np.abs(one - other).max())


@given(st.integers(1, 4), st.lists(st.integers(0, 7), max_size=25))
@settings(deadline=None, max_examples=60)
def test_the_domain_not_met_for_longest_leaves_first(places: int, visits: list[int]) -> None:
    """Against a list of domains, the one met last at its end."""
    memory, known = DomainMemory(places), list[int]()
    for domain in visits:
        memory.present = memory.nearest(signature(domain), far, within=0.5)
        assert (memory.present is not None) == (domain in known)
        known = [*(other for other in known if other != domain), domain][-places:]
        place = memory.keep(signature(domain))
        assert memory.present in (None, place)
        assert sorted(memory.signatures[memory.met > 0][:, 0].tolist()) == sorted(known)


def test_the_nearest_domain_is_found_if_it_is_near_enough() -> None:
    memory = DomainMemory(4)
    assert len(memory) == 4
    assert memory.nearest(signature(0), far, within=100) is None
    for number in (0, 3, 5):
        memory.keep(signature(number))
    assert memory.nearest(signature(3.9), far, within=1.0) == 1
    assert memory.nearest(signature(4.1), far, within=1.0) == 2
    assert memory.nearest(signature(4.0), far, within=0.5) is None
    assert memory.nearest(signature(4.0), far, within=1.0) == 1  # as far as is allowed, and a tie
    memory.present = 1
    memory.forget()
    assert memory.present is None
    assert memory.nearest(signature(3), far, within=100) is None


def test_a_state_is_a_copy_of_everything() -> None:
    memory, other = DomainMemory(3), DomainMemory(3)
    memory.keep(signature(1))
    memory.keep(signature(2))
    memory.present, memory.recalled = 1, 7
    state = memory.get_extra_state()
    other.set_extra_state(copy.deepcopy(state))
    assert (other.present, other.recalled, other.clock) == (1, 7, 2)
    other.keep(signature(5))
    assert other.nearest(signature(5), far, within=0.1) == 1
    assert torch.equal(state["signatures"][1], torch.full((9,), 2.0).double())
    memory.present = None
    other.set_extra_state(memory.get_extra_state())
    assert other.present is None


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(BadState, match=r"remembers domains of shape \(2, 9\), this method has \(3, 9\)"):
        DomainMemory(3).set_extra_state(DomainMemory(2).get_extra_state())
