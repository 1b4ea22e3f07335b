from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt

Stream = Callable[[int], Tensor]


def by_hand(model: nn.Module, images: Tensor) -> Tensor:
    """One image after the other, on features."""
    assert isinstance(model, nn.Sequential)
    body, head = model[:-1], model[-1]
    before, answers = None, []
    for image in images:
        feature = body(image[None])
        own = head(feature)
        both = own if before is None else head((feature + before) / 2)
        answers.append(both if both.softmax(1).max() > own.softmax(1).max() else own)
        before = feature
    return torch.cat(answers)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 500])
@torch.no_grad()
def test_a_stream_by_hand(precise: nn.Module, stream: Stream, batch_size: int) -> None:
    images = stream(500)
    adapter, expected = adapt(precise, "cofa"), by_hand(precise, images)
    found = torch.cat([adapter(batch) for batch in torch.split(images, batch_size)])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    changed = (expected - precise(images)).abs().amax(1) > 1e-6
    assert 0.1 < changed.double().mean() < 0.9
    assert adapter.stats.updates == 0


@torch.no_grad()
def test_paused_it_uses_the_last_image_and_keeps_it(precise: nn.Module, stream: Stream) -> None:
    images, adapter = stream(60), adapt(precise, "cofa")
    changed = (by_hand(precise, images) - precise(images)).abs().amax(1) > 1e-6
    border = 1 + int(changed[1:].int().argmax())  # an image that is averaged with the one before it
    images = images[: border + 10]
    adapter(images[:border])
    with adapter.paused():
        answers = [adapter(images[border:]), adapter(images[border:])]
    expected = by_hand(precise, images)[border:]
    torch.testing.assert_close(answers, [expected] * 2)
    assert not torch.allclose(expected[0], precise(images)[border])
    torch.testing.assert_close(adapter(images[border:]), expected)


def test_reset_forgets_the_last_image(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "cofa")
    adapter(stream(9))
    adapter.reset()
    torch.testing.assert_close(adapter(stream(1)), precise(stream(1)))


def test_its_state_is_saved(precise: nn.Module, stream: Stream, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    adapter, images = adapt(precise, "cofa"), stream(30)
    adapter(images[:20])
    adapter.save(tmp_path / "state")
    assert torch.equal(resitta.load(precise, tmp_path / "state")(images[20:]), adapter(images[20:]))
