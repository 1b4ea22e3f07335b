from typing import Any

import numpy as np
import pytest
import torch

from resitta.errors import BadState
from resitta.monitor.shadow import ledger as module
from resitta.monitor.shadow.ledger import Ledger


def row(adapted: int, source: int) -> list[float]:
    return [adapted, source, 0.75, 0.5, 0.25, 1.0]


def filled(*pairs: tuple[int, int], start: int = 0) -> Ledger:
    ledger = Ledger()
    ledger.add(np.arange(start, start + len(pairs)), np.array([row(*pair) for pair in pairs]))
    return ledger


def test_agreement_over_all_and_over_the_last() -> None:
    found = filled((0, 0), (1, 0), (2, 2), (3, 0))
    running, recent = found.agreement(), found.agreement(last=1)
    assert running is not None
    assert recent is not None
    assert (running.compared, running.disagreement, recent.compared, recent.disagreement) == (4, 0.5, 1, 1.0)
    assert (running.adapted_confidence, running.source_confidence) == (0.75, 0.5)
    assert (running.adapted_entropy, running.source_entropy) == (0.25, 1.0)
    assert Ledger().agreement() is None


def test_a_label_counts_once_and_can_be_corrected() -> None:
    ledger = filled((0, 1), (1, 1))
    assert ledger.label(np.array([0, 0, 7]), np.array([1, 0, 3])).tolist() == [True, True, False]
    assert ledger.cells.tolist() == [0, 0, 1, 0]  # the last label of an image counts
    ledger.label(np.array([0]), np.array([0]))
    assert ledger.cells.tolist() == [0, 0, 1, 0]
    ledger.label(np.array([0, 1]), np.array([1, 1]))
    assert ledger.cells.tolist() == [0, 1, 0, 1]


def test_the_newest_labelled_images_are_those_with_the_highest_ids() -> None:
    ledger = filled((0, 1), (0, 1), (0, 1), (0, 1))
    for number, label in ((3, 0), (0, 1), (1, 1), (2, 0)):  # the order of arrival does not matter
        ledger.label(np.array([number]), np.array([label]))
    recent, since = ledger.accuracy(last=2), ledger.accuracy(last=9, since=1)
    assert recent is not None
    assert since is not None
    assert (recent.labelled, recent.adapted.value) == (2, 1.0)
    assert since.labelled == 3
    assert since.source.value == pytest.approx(1 / 3)
    assert ledger.accuracy(last=2, since=4) is None


def test_room_is_bounded_and_totals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 3)
    ledger = filled((0, 0), (0, 1))
    assert ledger.oldest == 0
    ledger.label(np.array([0, 1]), np.array([0, 0]))
    ledger.add(np.array([8, 9]), np.array([row(2, 2), row(2, 2)]))
    assert ledger.ids.tolist() == [1, 8, 9]
    assert ledger.oldest == 1
    assert ledger.label(np.array([0, 9]), np.array([3, 3])).tolist() == [False, True]
    running, agreement = ledger.accuracy(), ledger.agreement()
    assert running is not None
    assert agreement is not None
    assert (running.labelled, agreement.compared) == (3, 4)


def test_what_is_not_finite_is_not_compared() -> None:
    ledger = Ledger()
    ledger.add(np.array([1, 2]), np.array([[0, 0, np.nan, 0.5, 0, 0], row(1, 2)]))
    assert ledger.ids.tolist() == [2]
    assert ledger.sums[0] == 1


def test_the_state_is_a_copy_and_comes_back() -> None:
    ledger = filled((0, 1), (2, 2), start=5)
    ledger.label(np.array([5]), np.array([1]))
    state = ledger.state()
    other = Ledger.of(state)
    ledger.label(np.array([5, 6]), np.array([0, 2]))
    assert other.cells.tolist() == [0, 1, 0, 0]
    assert other.agreement() == ledger.agreement()
    assert other.label(np.array([6]), np.array([2])).tolist() == [True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", torch.tensor([6, 5])),
        ("ids", torch.tensor([5])),
        ("values", torch.full((2, 6), torch.nan)),
        ("values", torch.zeros((2, 5))),
        ("labels", torch.zeros(2)),
        ("cells", torch.tensor([0, 0, -1, 0])),
        ("sums", torch.zeros(5, dtype=torch.float64)),
    ],
)
def test_a_state_made_by_hand_is_refused(name: str, value: Any) -> None:
    state = filled((0, 1), (2, 2), start=5).state()
    with pytest.raises(BadState, match="compared images must be"):
        Ledger.of({**state, name: value})
