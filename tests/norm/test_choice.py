import torch
from torch import nn

from resitta.methods import ROID, UnMix
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.norm.choice import chosen_norm, unmixing
from resitta.norm.unmix_bn import UnMixBN


def test_settings_choose_the_layer() -> None:
    layer, generator = nn.BatchNorm2d(3), torch.Generator().manual_seed(0)
    assert chosen_norm(ROID(), generator) is BatchStatisticsBN
    wrapped = chosen_norm(ROID(norm="unmix", components=5, batch_size=32), generator)(layer)
    assert isinstance(wrapped, UnMixBN)
    assert wrapped.component_means.shape == (5, 3)
    assert wrapped.rate == 1 - 0.9**0.5


def test_every_layer_draws_components_of_its_own() -> None:
    wrap = unmixing(UnMix(), torch.Generator().manual_seed(0))
    one, other = (wrap(nn.BatchNorm2d(3)) for _ in range(2))
    assert isinstance(one, UnMixBN)
    assert isinstance(other, UnMixBN)
    assert one.component_means.shape == (16, 3)
    assert not torch.equal(one.component_means, other.component_means)
