import math

import torch
from torch import Tensor

from resitta.data.corruptions.edges import canny
from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws


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
