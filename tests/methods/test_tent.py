from collections.abc import Callable

import pytest
import torch
from tests.methods.roid_by_hand import HandUnMix
from torch import Tensor, nn

from resitta import adapt, check_method, create

Twin = Callable[[nn.Module], nn.Module]
Affine = Callable[[nn.Module], list[nn.Parameter]]


@pytest.mark.parametrize("lr", [1e-3, 0.05])
def test_steps_by_hand(
    precise: nn.Module, stream: Callable[[int], Tensor], on_batch_statistics: Twin, affine: Affine, lr: float
) -> None:
    adapter = adapt(precise, "tent") if lr == 1e-3 else adapt(precise, "tent", lr=lr)
    twin = on_batch_statistics(precise)
    adam = torch.optim.Adam(affine(twin), lr=lr, betas=(0.9, 0.999))
    for batch in torch.split(stream(80), 16):
        logits = twin(batch)
        torch.testing.assert_close(adapter(batch), logits)  # from before the step
        probabilities = logits.softmax(1)
        adam.zero_grad()
        (-(probabilities * probabilities.log()).sum(1)).mean().backward()
        adam.step()
    assert adapter.stats.updates == 5
    learned = [parameter.detach() for parameter in adapter.parameters()]
    torch.testing.assert_close(learned, [parameter.detach() for parameter in affine(twin)])


def test_entropy_falls(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter, images = adapt(precise, "tent", lr=0.01), stream(32)
    probabilities = [adapter(images).softmax(1) for _ in range(10)]
    entropies = [float(-(p * p.log()).sum(1).mean()) for p in probabilities]
    assert entropies == sorted(entropies, reverse=True)


def test_pausing_predicts_what_the_next_step_would(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter, images = adapt(precise, "tent"), stream(16)
    adapter(images)
    with adapter.paused():
        expected = adapter(images)
        assert torch.equal(adapter(images), expected)
    torch.testing.assert_close(adapter(images), expected)
    assert adapter.stats.updates == 2


def test_steps_on_unmixed_statistics_by_hand(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter = adapt(precise, "tent", norm="unmix", components=3, lr=0.01, seed=4)
    literal = HandUnMix(precise, components=3, rate=0.1, seed=4)
    adam = torch.optim.Adam(literal.theta, lr=0.01)
    for batch in torch.split(stream(120), 24):
        logits = literal(batch, follow=True)
        torch.testing.assert_close(adapter(batch), logits.detach(), rtol=1e-9, atol=1e-9)
        p = logits.softmax(1)
        adam.zero_grad()
        torch.autograd.backward((-(p * p.log()).sum(1)).mean())
        adam.step()


def test_unmixed_statistics_conform() -> None:
    check_method(create("tent", norm="unmix"))
