import torch
from torch import nn

from resitta.components.bn_layers import batch_moments
from resitta.components.union import Union


def test_alone_everything_is_as_it_is() -> None:
    union, x, weight = Union(), torch.rand(6, 3, 2, 2), nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])
    assert union.begin(x) is x
    assert union.begin(x[:0]) is None
    assert union.moments is batch_moments, "layers know by this that they may take their fast paths"
    assert union.mean(torch.tensor([1.0, 2.0, 6.0])) == 3
    union.add_gradients([weight])
    assert weight.grad.tolist() == [1, 2]
