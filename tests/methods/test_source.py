from collections.abc import Callable

import torch
from torch import Tensor, nn

from resitta import adapt


def test_it_is_the_model_in_eval_mode(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    images = stream(30)
    expected = precise(images)
    adapter = adapt(precise.train(), "source")
    for batch, logits in zip(torch.split(images, 7), torch.split(expected, 7), strict=True):
        torch.testing.assert_close(adapter(batch), logits)
    assert adapter.stats.updates == 0


def test_it_owns_no_parameter(precise: nn.Module) -> None:
    assert not list(adapt(precise, "source").parameters())


def test_it_needs_no_batch_norm(stream: Callable[[int], Tensor]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 4)).double()
    torch.testing.assert_close(adapt(model, "source")(stream(5)), model(stream(5)))


def test_its_export_is_the_model(precise: nn.Module, stream: Callable[[int], Tensor]) -> None:
    adapter = adapt(precise, "source")
    adapter(stream(8))
    torch.testing.assert_close(dict(adapter.export().state_dict()), dict(precise.state_dict()), rtol=0, atol=0)
