import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.methods.lame import affinities, laplacian

Rows = list[list[float]]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(dot(row, row))
    return [value / length for value in row]


def plain_kernel(features: Rows, kind: str, neighbours: int) -> Rows:
    rows = [unit(row) for row in features]
    if kind == "linear":
        return [[dot(a, b) for b in rows] for a in rows]
    distances = [[math.dist(a, b) for b in rows] for a in rows]
    if kind == "rbf":
        kth = [sorted(row)[min(neighbours, len(rows)) - 1] for row in distances]
        sigma = sum(kth) / len(kth)
        return [[math.exp(-(d**2) / (2 * sigma**2)) for d in row] for row in distances]
    kernel = [[0.0] * len(rows) for _ in rows]
    for i, row in enumerate(distances):
        for j in sorted(range(len(rows)), key=lambda j: row[j])[1 : neighbours + 1]:
            kernel[i][j] = 1.0
    return kernel


def plain_lame(logits: Rows, kernel: Rows, steps: int, tolerance: float) -> Rows:
    """Y <- softmax(log p + K·Y) from Y = p, until the energy stands still."""
    p = [softmax(row) for row in logits]
    y, old = p, math.inf
    for step in range(steps):
        pull = [[dot(weights, [row[c] for row in y]) for c in range(len(p[0]))] for weights in kernel]
        y = [softmax([math.log(q) + k for q, k in zip(*pair, strict=True)]) for pair in zip(p, pull, strict=True)]
        cells = [cell for rows in zip(y, p, pull, strict=True) for cell in zip(*rows, strict=True)]
        energy = sum(a * (math.log(a) - math.log(q) - k) for a, q, k in cells)
        if step > 1 and abs(energy - old) <= tolerance * abs(old):
            break
        old = energy
    return [[math.log(value) for value in row] for row in y]


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("neighbours", [1, 3, 5, 50])
@pytest.mark.parametrize("kind", ["knn", "rbf", "linear"])
def test_the_kernel_against_plain_loops(kind: str, neighbours: int) -> None:
    features = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if kind == "rbf" and neighbours == 1:
        neighbours = 2  # the first neighbour is the sample itself, at distance 0
    expected = torch.tensor(plain_kernel(features.tolist(), kind, neighbours), dtype=torch.float64)
    torch.testing.assert_close(affinities(features, kind, neighbours), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "tolerance"), [(1, 1e-8), (2, 1e-8), (100, 1e-8), (100, 0.01), (100, 1.0)])
@pytest.mark.parametrize("kind", ["knn", "rbf", "linear"])
def test_predictions_against_plain_loops(
    precise: nn.Module, stream: Callable[[int], Tensor], kind: str, steps: int, tolerance: float
) -> None:
    adapter = adapt(precise, "lame", affinity=kind, steps=steps, tolerance=tolerance)
    assert isinstance(precise, nn.Sequential)
    for batch in torch.split(stream(26), 13):
        features: Tensor = precise[:-1](batch)
        kernel = plain_kernel(features.tolist(), kind, 5)
        expected = plain_lame(precise(batch).tolist(), kernel, steps, tolerance)
        torch.testing.assert_close(adapter(batch), torch.tensor(expected, dtype=torch.float64))


def test_the_defaults_are_those_of_its_authors(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    named = adapt(precise, "lame", affinity="knn", neighbours=5, steps=100, tolerance=1e-8)
    torch.testing.assert_close(adapt(precise, "lame")(stream(20)), named(stream(20)), rtol=0, atol=0)


def test_neighbours_agree_with_each_other() -> None:
    log_p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.45, 0.55]]).log()
    kernel = torch.ones(3, 3) - torch.eye(3)
    assert laplacian(log_p, kernel, steps=100, tolerance=1e-8).argmax(1).tolist() == [0, 0, 0]


def test_the_model_stays_as_it_is(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter, images = adapt(precise, "lame"), stream(12)
    first = adapter(images)
    adapter(stream(30)[12:])
    torch.testing.assert_close(adapter(images), first, rtol=0, atol=0)
    assert not list(adapter.parameters())


def test_one_image_alone_keeps_its_prediction(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    torch.testing.assert_close(adapt(precise, "lame")(stream(1)), precise(stream(1)).log_softmax(1))


@pytest.mark.parametrize("features", ["6", lambda images: images.mean((2, 3))])
def test_features_can_be_named_or_computed(
    precise: nn.Module, stream: Callable[[int], Tensor], features: str | Callable[[Tensor], Tensor]
) -> None:
    assert isinstance(precise, nn.Sequential)
    batch = stream(10)
    rows: Tensor = precise[:-1](batch) if isinstance(features, str) else features(batch)
    expected = plain_lame(precise(batch).tolist(), plain_kernel(rows.tolist(), "knn", 5), 100, 1e-8)
    found = adapt(precise, "lame", features=features)(batch)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
