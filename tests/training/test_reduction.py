import torch

from resitta.norm.moments import batch_moments
from resitta.training.reduction import LocalReduction


def test_alone_everything_is_as_it_is() -> None:
    union, x, gradients = LocalReduction(), torch.rand(6, 3, 2, 2), [torch.tensor([1.0, 2.0]), None]
    assert union.begin(x) is x
    assert union.begin(x[:0]) is None
    assert union.moments is batch_moments, "layers know by this that they may take their fast paths"
    assert union.mean(torch.tensor([1.0, 2.0, 6.0])) == 3
    assert union.add_gradients(gradients) is gradients
