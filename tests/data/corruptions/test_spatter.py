import heapq
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws
from resitta.data.corruptions.spatter import canny, chamfer_distance, equalise, spatter
from resitta.data.corruptions.tables import setting


def shortest_paths(marked: Tensor) -> Tensor:
    """Dijkstra over straight, diagonal and knight's steps."""
    height, width = marked.shape
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}
    steps = [(y, x, lengths[y * y + x * x]) for y in range(-2, 3) for x in range(-2, 3) if y * y + x * x in lengths]
    best = torch.full((height, width), 20.0)
    waiting = [(0.0, int(y), int(x)) for y, x in marked.nonzero()]
    while waiting:
        distance, y, x = heapq.heappop(waiting)
        if distance >= best[y, x]:
            continue
        best[y, x] = distance
        for down, right, length in steps:
            if 0 <= y + down < height and 0 <= x + right < width:
                heapq.heappush(waiting, (distance + length, y + down, x + right))
    return best


def test_chamfer_distance_agrees_with_shortest_paths() -> None:
    marked = Draws(torch.arange(2)).uniform(1, 25, 31) < 0.01
    found = chamfer_distance(marked)
    for one, mask in zip(found, marked, strict=True):
        torch.testing.assert_close(one[0], shortest_paths(mask[0]))


def test_chamfer_distance_stops_at_twenty() -> None:
    marked = torch.zeros(2, 1, 5, 40, dtype=torch.bool)
    marked[0, 0, 2, 0] = True
    found = chamfer_distance(marked)
    assert found[0, 0, 2].tolist() == [float(min(i, 20)) for i in range(40)]
    assert (found[1] == 20).all()


def test_equalise_flattens_the_histogram_of_each_image_alone() -> None:
    x = torch.stack([torch.arange(256.0).view(1, 16, 16) // 8, torch.arange(256.0).view(1, 16, 16)])
    spread = equalise(x)
    assert torch.equal(spread[1], x[1])
    assert spread[0].min() == 0
    assert spread[0].max() == 255
    steps = np.diff(np.unique(spread[0].numpy()))
    assert len(steps) == 31
    assert set(steps) == {8, 9}


@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("severity", [1, 3])
def test_water_brightens_a_part_of_the_image_in_its_own_colour(side: int, severity: int) -> None:
    x = torch.full((4, 3, side, side), 50.0)
    numbers = setting("spatter", severity, side=side)
    shine = spatter(x, Draws(torch.arange(4)), **numbers) - x
    assert shine.min() >= 0
    assert 0.01 < (shine > 1).float().mean() < 0.6
    torch.testing.assert_close(shine[:, 0] * 238 / 175, shine[:, 1], rtol=1e-4, atol=1e-3)
    assert shine.amax((1, 2, 3)).tolist() == pytest.approx([238 * numbers["strength"]] * 4, rel=1e-4)


def test_mud_covers_a_part_of_the_image_in_its_own_colour() -> None:
    x = torch.full((4, 3, 224, 224), 200.0)
    muddy = spatter(x, Draws(torch.arange(4)), **setting("spatter", 5, side=224))
    brown = torch.tensor([63.0, 42.0, 20.0]).view(3, 1, 1)
    cover = (200 - muddy) / (200 - brown)
    torch.testing.assert_close(cover[:, 0], cover[:, 2], rtol=1e-4, atol=1e-4)
    assert ((cover < 1e-4) | (cover > 0.7999)).all()
    assert 0.05 < (cover > 0.5).float().mean() < 0.4


def test_an_image_without_drops_is_unchanged() -> None:
    x = torch.full((1, 3, 16, 16), 50.0)
    numbers = {"mean": 0.0, "std": 0.1, "sigma": 1.0, "threshold": 0.9, "strength": 0.6, "mud": 0}
    assert torch.equal(spatter(x, Draws(torch.arange(1)), **numbers), x)


def canny_by_loops(image: Tensor, low: float, high: float) -> list[list[bool]]:
    """Canny's detector pixel by pixel."""
    height, width = image.shape

    def value(y: int, x: int) -> float:
        return float(image[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])

    def gradient(y: int, x: int) -> tuple[float, float]:
        dx = sum(w * (value(y + a, x + 1) - value(y + a, x - 1)) for a, w in ((-1, 1), (0, 2), (1, 1)))
        dy = sum(w * (value(y + 1, x + a) - value(y - 1, x + a)) for a, w in ((-1, 1), (0, 2), (1, 1)))
        return dx, dy

    slopes = {(y, x): gradient(y, x) for y in range(height) for x in range(width)}
    strength = {place: abs(dx) + abs(dy) for place, (dx, dy) in slopes.items()}
    weak = set()
    for (y, x), (dx, dy) in slopes.items():
        angle = math.degrees(math.atan2(abs(dy), abs(dx)))
        if angle < 22.5:
            before, after, tie = (y, x - 1), (y, x + 1), True
        elif angle > 67.5:
            before, after, tie = (y - 1, x), (y + 1, x), True
        else:
            turn = 1 if (dx < 0) == (dy < 0) else -1
            before, after, tie = (y - 1, x - turn), (y + 1, x + turn), False
        here, there = strength[y, x], strength.get(after, 0)
        if here > low and here > strength.get(before, 0) and (here > there or (tie and here == there)):
            weak.add((y, x))
    found = set()
    waiting = [place for place in weak if strength[place] > high]
    while waiting:
        y, x = waiting.pop()
        found.add((y, x))
        around = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)}
        waiting.extend(around & weak - found - set(waiting))
    return [[(y, x) in found for x in range(width)] for y in range(height)]


def test_agrees_with_canny_pixel_by_pixel() -> None:
    soft = smooth(Draws(torch.arange(3)).normal(1, 24, 30, std=400), 1.5) + 128
    images = torch.cat([soft, (soft > 140) * 180.0]).clamp(0, 255).floor()
    found = canny(images, low=50, high=150)
    for image, edges in zip(images, found, strict=True):
        assert edges[0].tolist() == canny_by_loops(image[0], 50, 150)
    assert 0.05 < found.float().mean() < 0.5


def test_weak_edges_count_only_where_they_hang_together_with_strong_ones() -> None:
    image = torch.zeros(1, 1, 20, 20)
    image[..., :10, 10:] = 20.0
    assert not canny(image, low=50, high=150).any()
    image[..., 10:, 10:] = 100.0
    edges = canny(image, low=50, high=150)[0, 0]
    assert edges[:, 8:12].any(1).all()
