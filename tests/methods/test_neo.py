from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import UnsuitableModel

Stream = Callable[[int], Tensor]


def by_hand(model: nn.Module, batches: list[Tensor], rate: float = 0.0) -> list[Tensor]:
    """The head on features less the mean of all features before the batch."""
    assert isinstance(model, nn.Sequential)
    body, head = model[:-1], model[-1]
    mean, seen, answers = torch.zeros(12, dtype=torch.float64), 0, []
    for batch in batches:
        features: Tensor = body(batch)
        answers.append(head(features - mean))
        seen += len(batch)
        share = max(len(batch) / seen, rate)
        mean = (1 - share) * mean + share * features.mean(0)
    return answers


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (64,) * 8, (3, 50, 1, 130)])
@pytest.mark.parametrize("rate", [None, 0.1, 1.0])
@torch.no_grad()
def test_a_stream_by_hand(precise: nn.Module, stream: Stream, sizes: tuple[int, ...], rate: float | None) -> None:
    adapter, batches = adapt(precise, "neo", rate=rate), list(torch.split(stream(sum(sizes)), list(sizes)))
    for batch, expected in zip(batches, by_hand(precise, batches, rate or 0.0), strict=True):
        torch.testing.assert_close(adapter(batch), expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_the_mean_does_not_depend_on_the_batches(precise: nn.Module, stream: Stream) -> None:
    images, found = stream(140), []
    for size in (1, 20, 120):
        adapter = adapt(precise, "neo")
        for batch in torch.split(images[:120], size):
            adapter(batch)
        found.append(adapter(images[120:]))
    torch.testing.assert_close(found[1:], found[:1] * 2)


def test_the_first_batch_is_predicted_as_by_the_source(precise: nn.Module, stream: Stream) -> None:
    torch.testing.assert_close(adapt(precise, "neo")(stream(1)), precise(stream(1)))


def test_an_adapter_in_half_precision_counts_on(model: nn.Module, stream: Stream) -> None:
    adapter = adapt(model, "neo").bfloat16()
    for batch in torch.split(stream(400).bfloat16(), 1):
        adapter(batch)
    assert int(adapter.learner.get_buffer("count")) == 400
    assert adapter(batch).dtype == torch.bfloat16


def test_a_head_without_bias(stream: Stream) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4, bias=False)).double()
    adapter, images = adapt(model, "neo"), stream(20)
    adapter(images[:10])
    torch.testing.assert_close(adapter(images[10:]), model(images[10:]) - model(images[:10]).mean(0))


def test_its_state_is_saved(precise: nn.Module, stream: Stream, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    adapter, images = adapt(precise, "neo"), stream(30)
    adapter(images[:20])
    adapter.save(tmp_path / "state")
    assert torch.equal(resitta.load(precise, tmp_path / "state")(images[20:]), adapter(images[20:]))


def test_a_model_that_changes_the_logits_of_its_head_is_refused(precise: nn.Module) -> None:
    with pytest.raises(UnsuitableModel, match="the model changes them afterwards"):
        adapt(nn.Sequential(precise, nn.Tanh()), "neo")
