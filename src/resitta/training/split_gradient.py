"""The gradient of a loss on two passes of a network, in two parts, so that the passes can be run apart.

For a loss ℓ(z(θ), z'(θ)) of the logits of both,

    dℓ/dθ = (∂ℓ/∂z') dz'/dθ + (∂ℓ/∂z) dz/dθ

The first term and ∂ℓ/∂z follow from the second pass and the values of z; the second term, from ∂ℓ/∂z and the first
pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from resitta.training.optimizer import Gradients, Optimizer


def partial_gradient(loss: Tensor, logits: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """ℓ, ∂ℓ/∂z and (∂ℓ/∂z') dz'/dθ as one vector; zeros for what the loss does not depend on.

    `logits`: the leaf z, of which the loss was computed.

    >>> z, θ = torch.tensor([3.0], requires_grad=True), torch.tensor([2.0], requires_grad=True)
    >>> partial_gradient((z * 5 * θ).sum(), z, [θ])  # z' = 5 θ
    tensor([30., 10., 15.])
    """
    wanted = [logits, *parameters]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    filled = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(wanted, found, strict=True)]
    return torch.cat([loss.detach().view(1), *(gradient.reshape(-1) for gradient in filled)])


def unpacked(vector: Tensor, logits: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The three parts of that vector, with the shapes and types of what they are gradients of."""
    shapes = [logits, *parameters]
    loss, *flat = torch.split(vector, [1, *(x.numel() for x in shapes)])
    along, *gradients = (values.view(x.shape).to(x.dtype) for x, values in zip(shapes, flat, strict=True))
    return loss[0], along, gradients


def descend(optimizer: Optimizer, logits: Tensor, vector: Tensor) -> Tensor:
    """One step down the whole gradient, from the first pass's logits with their autograd graph; return the loss.

    Parameters that the first pass does not use are left alone: the second one, of the same network, does not either.

    >>> from resitta.training.optimizer import SGD
    >>> θ = torch.nn.Parameter(torch.tensor([2.0]))
    >>> z = 1.5 * θ
    >>> descend(SGD([θ], lr=0.1), z, torch.tensor([30.0, 10.0, 15.0]))  # θ <- 2 - .1 (15 + 10 · 1.5)
    tensor(30.)
    >>> θ.data
    tensor([-1.])
    """
    loss, along, others = unpacked(vector, logits, optimizer.trained)
    own = optimizer.gradients(logits, along)
    gradients: Gradients = [None if g is None else g + other for g, other in zip(own, others, strict=True)]
    optimizer.step(gradients, loss)
    return loss
