"""A guard against a crash of torch: GroupNorm on a CPU, trained behind a channels-last input that needs no gradient.

torch 2.13 ends the process in the backward pass then; with a contiguous input it computes the same.
"""

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

GROUP_NORMS = {F.group_norm, torch.group_norm}


class ContiguousGroupNorm(TorchFunctionMode):
    """Inside, GroupNorm gets contiguous inputs.

    >>> layer = torch.nn.GroupNorm(1, 2)
    >>> with ContiguousGroupNorm():
    ...     y = layer(torch.rand(3, 2, 4, 4).to(memory_format=torch.channels_last))
    >>> y.is_contiguous()
    True
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation."""
        if func in GROUP_NORMS and args:
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **(kwargs or {}))
