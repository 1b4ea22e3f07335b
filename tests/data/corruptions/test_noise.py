import math

import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.noise import (
    _photon_table,
    alias_table,
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from resitta.data.corruptions.random import Draws


def grey(level: float, n: int = 8, side: int = 64) -> Tensor:
    return torch.full((n, 3, side, side), float(level))


def draws(n: int = 8) -> Draws:
    return Draws(torch.arange(n) * 7919)


def test_gaussian_noise_has_the_wanted_deviation() -> None:
    noise = gaussian_noise(grey(100), draws(), std=0.1) - 100
    assert abs(noise.mean()) < 0.3
    assert noise.std().item() == pytest.approx(25.5, rel=0.01)


def test_speckle_noise_grows_with_the_light() -> None:
    assert speckle_noise(grey(200), draws(), std=0.2).std().item() == pytest.approx(40, rel=0.01)
    assert (speckle_noise(grey(0), draws(), std=0.2) == 0).all()


def test_impulse_noise_turns_the_wanted_share_white_or_black() -> None:
    noisy = impulse_noise(grey(100), draws(), amount=0.27)
    for level, share in ((0, 0.135), (255, 0.135), (100, 0.73)):
        assert (noisy == level).float().mean().item() == pytest.approx(share, abs=0.005)


def poisson_chance(rate: float, count: int) -> float:
    return math.exp(count * math.log(rate) - rate - math.lgamma(count + 1))


@pytest.mark.parametrize("photons", [3, 12, 500])
@pytest.mark.parametrize("level", [1, 51, 200])
def test_the_photon_tables_hold_the_poisson_distribution_clipped_at_white(photons: int, level: int) -> None:
    columns = photons + 1
    keep, alias = (table.view(256, columns) for table in _photon_table(photons))
    found = torch.zeros(columns, dtype=torch.float64)
    for column in range(columns):
        found[column] += keep[level, column] / columns
        found[int(alias[level, column])] += (1 - keep[level, column]) / columns
    expected = [poisson_chance(level / 255 * photons, count) for count in range(photons)]
    expected.append(1 - sum(expected))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_shot_noise_counts_whole_photons_with_the_moments_of_poisson() -> None:
    noisy = shot_noise(grey(102), draws(), photons=50)
    photons = noisy * 50 / 255
    assert torch.allclose(photons, photons.round(), atol=1e-3)
    assert photons.mean().item() == pytest.approx(20, rel=0.005)
    assert photons.var().item() == pytest.approx(20, rel=0.03)


def test_shot_noise_leaves_black_black_and_stays_below_white() -> None:
    assert (shot_noise(grey(0), draws(), photons=3) == 0).all()
    assert shot_noise(grey(255), draws(), photons=3).max() <= 255


def test_alias_table_levels_out_extreme_chances() -> None:
    chances = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    keep, alias = alias_table(chances)
    assert keep.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert (alias[0, 1:] == 0).all()
    assert (alias[1, :2] == 2).all()
