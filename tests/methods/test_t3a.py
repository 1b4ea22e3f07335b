import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import UnsuitableModel
from resitta.methods.t3a import T3ALearner, places
from resitta.training.features import find_head, head_of
from resitta.training.network import Network

Stream = Callable[[int], Tensor]
Rows = list[list[float]]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(dot(row, row))
    return [value / length if length else 0.0 for value in row]


def uncertainty(logits: list[float]) -> float:
    top = max(logits)
    weights = [math.exp(value - top) for value in logits]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w)


class ByHand:
    """The page of the method in plain Python: a list of supports for each class."""

    def __init__(self, head: nn.Linear, size: int | None) -> None:
        self.head, self.size = head, size
        self.supports: list[list[tuple[float, list[float]]]] = [[] for _ in range(head.out_features)]
        self.add(head.weight)

    def add(self, features: Tensor) -> None:
        logits: Rows = self.head(features).tolist()
        for feature, row in zip(features.tolist(), logits, strict=True):
            self.supports[row.index(max(row))].append((uncertainty(row), feature))
        if self.size is not None:
            self.supports = [sorted(some, key=lambda pair: pair[0])[: self.size] for some in self.supports]

    def __call__(self, features: Tensor) -> Tensor:
        self.add(features)
        templates = []
        for some in self.supports:
            units = [unit(feature) for _, feature in some]
            templates.append(unit([sum(column) for column in zip(*units, strict=True)]) if units else None)
        rows: Rows = features.tolist()
        answers = [[0.0 if template is None else dot(row, template) for template in templates] for row in rows]
        return torch.tensor(answers, dtype=torch.float64)


def parts(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    assert isinstance(model, nn.Sequential)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    return model[:-1], head


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("size", [1, 3, 20, 100, None])
def test_a_stream_by_hand(precise: nn.Module, stream: Stream, size: int | None, batch_size: int) -> None:
    body, head = parts(precise)
    adapter, literal = adapt(precise, "t3a", filter_k=size), ByHand(head, size)
    with torch.no_grad():
        for batch in torch.split(stream(64 if batch_size == 1 else 500), batch_size):
            torch.testing.assert_close(adapter(batch), literal(body(batch)), rtol=1e-11, atol=1e-11)


def test_the_usual_number_of_supports_is_100(precise: nn.Module, stream: Stream) -> None:
    body, head = parts(precise)
    adapter, literal = adapt(precise, "t3a"), ByHand(head, 100)
    with torch.no_grad():
        for batch in torch.split(stream(900), 300):
            torch.testing.assert_close(adapter(batch), literal(body(batch)), rtol=1e-11, atol=1e-11)
    assert max(map(len, literal.supports)) == 100
    assert resitta.methods.T3A(**resitta.methods.T3A.presets["imagenet"]).filter_k == 20


def test_paused_it_answers_as_a_step_would_and_keeps_nothing(precise: nn.Module, stream: Stream) -> None:
    for size in (3, None):
        adapter, images = adapt(precise, "t3a", filter_k=size), stream(40)
        adapter(images[:20])
        with adapter.paused():
            answers = [adapter(images[20:]) for _ in range(2)]
            adapter(images.flip(3) * 0.5)
        torch.testing.assert_close(answers, [adapter(images[20:])] * 2, rtol=0, atol=0)
        assert adapter.stats.updates == 2


def test_a_pointwise_convolution_can_be_the_head(stream: Stream) -> None:
    body, pool = nn.Conv2d(3, 7, 3), (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    first = nn.Sequential(body, nn.ReLU(), *pool, nn.Linear(7, 5)).double()
    last = nn.Conv2d(7, 5, 1)
    with torch.no_grad():
        last.weight.copy_(first[-1].weight[:, :, None, None])  # type: ignore[index]
        last.bias.copy_(first[-1].bias)  # type: ignore[arg-type,union-attr]
    second = nn.Sequential(body, nn.ReLU(), last, *pool).double()
    one, other = adapt(first, "t3a", filter_k=3), adapt(second, "t3a", filter_k=3)
    for batch in torch.split(stream(60), 20):
        torch.testing.assert_close(one(batch), other(batch))


def test_of_equal_newcomers_the_earlier_enters() -> None:
    entropies, labels = torch.tensor([0.3, 0.3, 0.3]), torch.tensor([1, 1, 0])
    place, enters = places(entropies, labels, torch.tensor([[0.3], [0.4]]))
    assert enters.tolist() == [True, False, False]
    assert place.tolist() == [0, 0, 0]


def test_supports_have_a_fixed_size_and_are_saved(precise: nn.Module, stream: Stream, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    adapter, images = adapt(precise, "t3a", filter_k=4), stream(80)
    before = {name: tensor.shape for name, tensor in adapter.learner.named_buffers()}
    adapter(images[:60])
    assert {name: tensor.shape for name, tensor in adapter.learner.named_buffers()} == before
    adapter.save(tmp_path / "state")
    other = resitta.load(precise, tmp_path / "state")
    assert torch.equal(adapter(images[60:]), other(images[60:]))
    adapter.reset()
    learner, fresh = adapter.learner, adapt(precise, "t3a", filter_k=4).learner
    assert isinstance(learner, T3ALearner)
    assert isinstance(fresh, T3ALearner)
    assert torch.equal(learner.supports.get_buffer("units"), fresh.supports.get_buffer("units"))


def test_half_precision_is_kept_in_float32(model: nn.Module, stream: Stream) -> None:
    adapter = adapt(model.bfloat16(), "t3a", filter_k=3)
    logits = adapter(stream(30).bfloat16())
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    assert {b.dtype for n, b in adapter.learner.named_buffers() if "supports" in n} == {torch.float32}


def test_a_model_without_a_linear_head_is_refused() -> None:
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    with pytest.raises(UnsuitableModel, match="no Linear or 1×1 convolution ran as a head; the head must be"):
        adapt(nn.Sequential(nn.Conv2d(3, 4, 3), *pooled), "t3a")
    with pytest.raises(UnsuitableModel, match="'2' ran last, but the logits are not Linear's own"):
        adapt(nn.Sequential(*pooled, nn.Linear(3, 4), nn.Softplus()), "t3a")


def test_the_head_can_be_named(precise: nn.Module) -> None:
    network = Network(precise)
    assert find_head(network) == find_head(network, "8") == "8"
    with pytest.raises(UnsuitableModel, match="module '0' is a Conv2d; the head must be a Linear"):
        head_of(network, "0")
