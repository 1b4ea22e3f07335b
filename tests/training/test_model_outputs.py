"""Probabilities in the place of logits, and whose fault an error is."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.errors import BadImages, BadOutput
from resitta.training.model_outputs import ROWS, Answers

METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def confident(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.Softmax(dim=1))


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_returns_probabilities_is_refused_with_the_remedy(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(confident(model), method)
    for _ in range(2):
        with pytest.raises(
            BadOutput, match=r"returns probabilities .*; remove its final softmax, or .*output=torch.log"
        ):
            adapter(images(8))
    assert (adapter.samples, adapter.learner.updates) == (0, 0)


@pytest.mark.parametrize("method", ["tent", "lame", "resitta"])
def test_the_remedy_helps(model: nn.Module, method: str) -> None:
    adapter, plain = resitta.adapt(confident(model), method, output=torch.log), resitta.adapt(model, method)
    for seed in range(2):
        expected = plain(images(70, seed)).log_softmax(dim=1)
        torch.testing.assert_close(adapter(images(70, seed)).log_softmax(dim=1), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_of_single_images_is_refused_after_a_few(model: nn.Module, background: bool) -> None:
    adapter = resitta.adapt(confident(model), background=background)
    for seed in range(ROWS - 1):
        adapter(images(1, seed))
    with pytest.raises(BadOutput, match="returns probabilities"):
        adapter(images(1, seed=9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_is_allowed_for(dtype: torch.dtype) -> None:
    probabilities = torch.randn(16, 1000, generator=torch.Generator().manual_seed(0)).mul(3).softmax(dim=1).to(dtype)
    with pytest.raises(BadOutput):
        Answers().take(images(16), probabilities, channels_last=False)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(8, 2),
        torch.tensor([[0.25, 0.75]]),
        torch.tensor([[0.25, 0.75]]).expand(8, 2),
        torch.cat((torch.full((7, 4), 0.25), torch.tensor([[0.3, 0.3, 0.3, 0.2]]))),
        torch.tensor([[1.5, -0.5], [2.0, -1.0], [0.0, 1.0], [0.5, 0.5], [3.0, -2.0]]),
        torch.full((8, 5), torch.nan),
    ],
)
def test_logits_that_look_like_probabilities_by_chance_are_taken(logits: Tensor) -> None:
    Answers().take(images(len(logits)), logits, channels_last=False)


def test_one_row_of_logits_settles_it() -> None:
    answers = Answers()
    answers.take(images(1), torch.tensor([[3.0, -1.0]]), channels_last=False)
    answers.take(images(16), torch.rand(16, 4).softmax(dim=1), channels_last=False)


def test_nothing_is_looked_at_once_it_is_settled(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = resitta.adapt(model)
    adapter(images(8))

    def look(answers: Answers, logits: Tensor) -> None:
        raise AssertionError

    monkeypatch.setattr(Answers, "_check", look)
    adapter(images(70))
    adapter.reset()
    adapter(images(70))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.Conv2d(5, 4, 3), "expected input"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 4)), "cannot be multiplied"),
        (lambda: nn.Conv2d(3, 4, 30), "Kernel size can't be greater"),
        (lambda: nn.MaxPool2d(30), "too small"),
        (lambda: nn.BatchNorm2d(7), "running_mean|elements"),
        (lambda: nn.Conv1d(3, 4, 3), "Expected|expected"),
    ],
)
def test_images_that_do_not_fit_the_weights_are_to_blame(model: nn.Module, layer: Any, message: str) -> None:
    adapter = resitta.adapt(nn.Sequential(layer(), model).eval())
    with pytest.raises(BadImages, match=rf"the model refused images of shape \(2, 3, 10, 10\): .*({message})"):
        adapter(images(2))


def test_a_layout_is_tried_only_while_it_is_unknown(model: nn.Module) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            vars(self)["failing"] = failing

        def forward(self, x: Tensor) -> Any:
            if failing:
                failing.pop()
                raise RuntimeError("once")
            return self.net(x)

        def __deepcopy__(self, memo: Any) -> "Fails":
            return Fails()

    failing: list[int] = []
    adapter = resitta.adapt(Fails())
    adapter(images(4))
    failing.append(1)
    with pytest.raises(RuntimeError, match="once"):
        adapter(images(4))
    assert adapter.samples == 4
