import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt


def rescaled(model: nn.Module, factor: float) -> nn.Module:
    """The same function, with the parameters of BatchNorm times a factor and the layers behind it divided by it."""
    twin = copy.deepcopy(model)
    _first, *later = [module for module in twin.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in later:
        layer.weight.data /= factor
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data *= factor
            module.bias.data *= factor
    return twin


@pytest.mark.parametrize("method", ["pl", "tent", "note", "rotta", "resitta"])
def test_a_network_with_smaller_parameters_takes_the_same_course_with_smaller_steps(
    method: str, precise: nn.Module, stream: Callable[[int], Tensor]
) -> None:
    small = rescaled(precise, 0.2)
    course = {
        name: torch.cat([adapter(batch) for batch in torch.split(stream(320), 32)])
        for name, adapter in {
            "as it is": adapt(precise, method, lr=0.05),
            "small": adapt(small, method, lr=0.01),
            "small, the same steps": adapt(small, method, lr=0.05),
        }.items()
    }
    torch.testing.assert_close(course["small"], course["as it is"], rtol=0, atol=1e-5)
    assert not torch.allclose(course["small, the same steps"], course["as it is"], rtol=0, atol=1e-3)
