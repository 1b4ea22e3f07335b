import copy

import pytest
import torch
from torch import nn

from resitta.errors import BadSetting
from resitta.models.normalise import Normalise, Normalised


def test_each_channel_is_normalised_by_its_own_values() -> None:
    x = torch.rand(2, 3, 4, 5)
    y = Normalise((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(x)
    for channel, (mean, std) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        torch.testing.assert_close(y[:, channel], (x[:, channel] - mean) / std)


def test_the_values_follow_the_model_but_are_no_weights() -> None:
    layer = copy.deepcopy(Normalise((0, 0, 0), (1, 1, 1))).to(torch.float64)
    assert layer.mean.dtype == layer.std.dtype == torch.float64
    assert not layer.state_dict()


def test_a_wrapped_model_sees_normalised_images_and_keeps_its_weights() -> None:
    inner = nn.Conv2d(3, 2, 1)
    x = torch.rand(1, 3, 2, 2)
    model = Normalised(inner, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    torch.testing.assert_close(model(x), inner(2 * x - 1))
    assert set(model.state_dict()) == {"model.weight", "model.bias"}


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((0.5,), (0.0,)), ((), ())])
def test_unusable_values_are_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(BadSetting, match="one std > 0 per channel"):
        Normalise(mean, std)
