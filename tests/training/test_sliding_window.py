import torch
from torch import Tensor

from resitta.training.sliding_window import SlidingWindow


def image(value: float, side: int = 2) -> Tensor:
    return torch.full((1, 3, side, side), value)


def values(images: Tensor) -> list[float]:
    return images[:, 0, 0, 0].tolist()


def test_the_latest_images_are_joined_and_joining_changes_nothing() -> None:
    window, due = SlidingWindow(3), []
    for number in range(7):
        assert values(window.joined(image(number))) == [float(n) for n in range(max(0, number - 2), number + 1)]
        assert values(window.joined(image(number)))[-1] == number
        due.append(window.add(image(number)))
    assert due == [False, False, True, False, False, True, False]


def test_a_window_of_one_and_batches_pass() -> None:
    batch = torch.cat([image(1), image(2)])
    for window in (SlidingWindow(1), SlidingWindow(4)):
        assert window.joined(batch) is batch
        assert not window.takes(batch)
    assert not SlidingWindow(1).takes(image(0))
    assert SlidingWindow(4).takes(image(0))


def test_images_of_another_size_begin_anew() -> None:
    window = SlidingWindow(3)
    window.add(image(1))
    window.add(image(2, side=4))
    assert values(window.joined(image(3, side=4))) == [2, 3]


def test_state_is_taken_over_and_follows_the_images() -> None:
    window, other = SlidingWindow(3), SlidingWindow(3)
    for number in range(2):
        window.add(image(number))
    other.load_state_dict(window.state_dict())
    assert values(other.joined(image(2).double())) == [0, 1, 2]
    assert other.joined(image(2).double()).dtype == torch.float64
    assert other.add(image(2))
