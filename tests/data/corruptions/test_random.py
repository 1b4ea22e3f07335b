import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.data.corruptions.random import Draws, image_keys, mix


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as published, in Python's unbounded integers."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        words.append(z ^ (z >> 31))
    return words


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=50, deadline=None)
def test_mix_is_the_finaliser_of_splitmix64(state: int) -> None:
    after = (state + 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63
    assert mix(torch.tensor([after])).item() % 2**64 == splitmix64(state % 2**64, 1)[0]


def test_uniform_numbers_fill_all_bins_evenly() -> None:
    draws = Draws(torch.arange(64)).uniform(4096)
    counts = torch.histc(draws, 64, 0, 1)
    expected = draws.numel() / 64
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(chi_square - 63) < 5 * math.sqrt(2 * 63)
    assert 0 <= draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() < 1


def test_numbers_are_independent_along_an_image_across_images_and_across_calls() -> None:
    draws = Draws(torch.arange(64))
    first, second = draws.uniform(4096) - 0.5, draws.uniform(4096) - 0.5
    pairs = [
        (first[:, 1:], first[:, :-1]),
        (first[:, : 4096 // 2], first[:, 4096 // 2 :]),
        (first[1:], first[:-1]),
        (first, second),
        (first**2 - 1 / 12, second**2 - 1 / 12),
    ]
    for a, b in pairs:
        correlation = (a * b).mean() / (a.std() * b.std())
        assert abs(correlation) < 5 / math.sqrt(a.numel())


def test_every_bit_is_fair() -> None:
    words = Draws(torch.arange(256))._int32(1024)
    for bit in range(32):
        share = ((words >> bit) & 1).double().mean().item()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(words.numel())


def test_normal_numbers_have_the_moments_of_the_normal_distribution() -> None:
    z = Draws(torch.arange(64)).normal(4097).double()
    n = z.numel()
    assert z.shape == (64, 4097)
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((z.abs() > 2).double().mean() - 0.0455) < 0.002


def test_integers_reach_their_bounds_evenly_and_take_one_bound_per_image() -> None:
    counts = Draws(torch.arange(100)).integers(7, 100).flatten().bincount()
    assert len(counts) == 7
    assert ((counts - 10_000 / 7).abs() < 5 * math.sqrt(10_000 / 7)).all()
    bounds = torch.tensor([1, 5, 1000])
    drawn = torch.stack([Draws(torch.tensor([7, 8, 9]) + i).integers(bounds) for i in range(200)])
    assert (drawn.amin(0) >= 0).all()
    assert (drawn.amax(0) < bounds).all()
    assert drawn[:, 2].max() > 900


def test_draws_do_not_depend_on_the_batch() -> None:
    keys = torch.tensor([5, -3, 2**62])
    together = Draws(keys).normal(3, 5)
    alone = torch.cat([Draws(keys[i : i + 1]).normal(3, 5) for i in range(3)])
    assert torch.equal(together, alone)


@given(st.integers(0, 3 * 5 * 7 - 1), st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_one_changed_value_changes_about_half_of_the_keys_bits(place: int, change: int) -> None:
    image = torch.arange(3 * 5 * 7, dtype=torch.uint8).view(1, 3, 5, 7)
    other = image.clone()
    other.view(-1)[place] += change
    a, b = image_keys(image, "x").item(), image_keys(other, "x").item()
    assert 8 <= bin(int(a) ^ int(b) & (2**64 - 1)).count("1") <= 56


def test_keys_depend_on_purpose_and_shape() -> None:
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    keys = {
        image_keys(image, "a").item(),
        image_keys(image, "b").item(),
        image_keys(image.view(1, 3, 4, 16), "a").item(),
    }
    assert len(keys) == 3
