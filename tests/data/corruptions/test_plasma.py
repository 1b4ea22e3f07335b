import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.data.corruptions.plasma import plasma
from resitta.data.corruptions.random import Draws


class Recorded(Draws):
    """Remembers what it handed out."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__(keys)
        self.given: list[NDArray[np.float64]] = []

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = super().uniform(*shape, low=low, high=high)
        self.given.append(drawn[0].double().numpy())
        return drawn


def by_loops(noise: list[NDArray[np.float64]], side: int) -> NDArray[np.float64]:
    """Diamond-square point by point, on one map whose far edges touch."""
    heights = np.zeros((side, side))
    step = side
    for level in noise:
        half = step // 2
        for kind, (row, column) in enumerate([(half, half), (0, half), (half, 0)]):
            arms = [(half, half), (half, -half), (-half, half), (-half, -half)]
            if kind > 0:
                arms = [(half, 0), (-half, 0), (0, half), (0, -half)]
            for i in range(side // step):
                for j in range(side // step):
                    y, x = row + i * step, column + j * step
                    mean = sum(heights[(y + a) % side, (x + b) % side] for a, b in arms) / 4
                    heights[y, x] = mean + level[kind, i, j]
        step = half
    heights -= heights.min()
    return np.asarray(heights / heights.max())


def test_agrees_with_diamond_square_point_by_point() -> None:
    draws = Recorded(torch.tensor([5]))
    cloud = plasma(draws, 16, 1.75)[0].numpy()
    noise = [given for given in draws.given if len(given) == 3]
    assert np.allclose(cloud, by_loops(noise, 16), atol=1e-5)


def test_details_fade_with_the_square_of_the_decay() -> None:
    draws = Recorded(torch.tensor([5]))
    plasma(draws, 32, 3.0)
    largest = [np.abs(given).max() for given in draws.given if len(given) == 3]
    assert len(largest) == 5
    assert 5_000 < largest[0] <= 10_000
    assert largest[-1] <= 10_000 / 3.0**8


def test_clouds_of_a_batch_differ() -> None:
    clouds = plasma(Draws(torch.arange(3)), 8, 2.0)
    assert not torch.equal(clouds[0], clouds[1])
    assert clouds.amin((1, 2)).tolist() == [0, 0, 0]
    assert clouds.amax((1, 2)).tolist() == [1, 1, 1]
