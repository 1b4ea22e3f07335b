from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.methods.pseudo_label import pseudo_label_loss


@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_steps_by_hand(
    precise: nn.Module,
    stream: Callable[[int], Tensor],
    on_batch_statistics: Callable[[nn.Module], nn.Module],
    affine: Callable[[nn.Module], list[nn.Parameter]],
    threshold: float,
) -> None:
    adapter = adapt(precise, "pl", threshold=threshold, lr=0.01)
    twin = on_batch_statistics(precise)
    adam = torch.optim.Adam(affine(twin), lr=0.01)
    left_out = 0
    for batch in torch.split(stream(80), 16):
        logits = twin(batch)
        torch.testing.assert_close(adapter(batch), logits)
        confident = logits.softmax(1).max(1).values >= threshold
        left_out += int((~confident).sum())
        labels = logits[confident].argmax(1, keepdim=True)
        adam.zero_grad()
        (-logits[confident].log_softmax(1).gather(1, labels)).mean().backward()
        adam.step()
    assert adapter.stats.updates == 5
    assert (left_out > 5) == (threshold > 0)
    learned = [parameter.detach() for parameter in adapter.parameters()]
    torch.testing.assert_close(learned, [parameter.detach() for parameter in affine(twin)])


def test_all_parameters_train_if_asked_to(
    precise: nn.Module, stream: Callable[[int], Tensor], on_batch_statistics: Callable[[nn.Module], nn.Module]
) -> None:
    adapter = adapt(precise, "pl", parameters="all", lr=0.01)
    twin = on_batch_statistics(precise).requires_grad_(True)
    adam = torch.optim.Adam(twin.parameters(), lr=0.01)
    for batch in torch.split(stream(48), 16):
        logits = twin(batch)
        torch.testing.assert_close(adapter(batch), logits)
        adam.zero_grad()
        (-logits.log_softmax(1).gather(1, logits.argmax(1, keepdim=True))).mean().backward()
        adam.step()


def test_what_trains_is_told(precise: nn.Module) -> None:
    assert adapt(precise, "pl").method.trains == "affine"
    assert adapt(precise, "pl", parameters="all").method.trains == "all"


def test_the_threshold_itself_counts_as_confident() -> None:
    logits = torch.zeros(2, 2, dtype=torch.float64)
    assert pseudo_label_loss(logits, threshold=0.5).item() == pytest.approx(torch.tensor(2.0).log().item())
    assert pseudo_label_loss(logits, threshold=0.5001).item() == 0


def test_without_confident_predictions_there_is_nothing_to_learn(
    precise: nn.Module, stream: Callable[[int], Tensor]
) -> None:
    adapter, images = adapt(precise, "pl", threshold=1.0), stream(16)
    first = adapter(images)
    torch.testing.assert_close(adapter(images), first, rtol=0, atol=0)
