import numpy as np
import pytest
import torch

from resitta.errors import BadLabels
from resitta.monitor.shadow.ids import chosen, whole_numbers


def test_the_choice_is_pseudo_random_and_of_the_right_size() -> None:
    found = chosen(range(200_000), 0.05, seed=3)
    assert found.mean() == pytest.approx(0.05, abs=0.002)
    for period in (2, 7, 20, 64):  # no camera of several in turn is left out
        shares = [found[start::period].mean() for start in range(period)]
        assert min(shares) > 0.03
        assert max(shares) < 0.07
    gaps = np.diff(np.flatnonzero(found))
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.05)  # as independent draws have them
    assert (chosen(range(1000, 1100), 0.5, seed=3) == chosen(range(2000), 0.5, seed=3)[1000:1100]).all()


def test_whole_numbers_come_in_many_forms() -> None:
    for form in ([1, 2], (1, 2), range(1, 3), np.array([1, 2], np.uint8), torch.tensor([1, 2], dtype=torch.int16)):
        assert whole_numbers(form, "ids").tolist() == [1, 2]
    for wrong in ([1.5], torch.zeros(2), [True], 3, None, [[1]], [None], ["1"]):
        with pytest.raises(BadLabels, match=r"^ids must be "):
            whole_numbers(wrong, "ids")
