"""Which normalisation layers to train where training the last ones too would let the predictions collapse.

SAR (Niu et al., ICLR 2023) and DeYO leave out a ResNet's last stage, `layer4`, and the last three of a ViT's twelve
blocks with the norm after them. The rule here leaves out the same and goes by no names of architectures: the last
quarter of the repeated blocks, and whatever comes after.
"""

import re
from collections import defaultdict

from torch import Tensor, nn

from resitta.norm.affine_layers import affine_layers

LOPSIDED = 0.9
"""A sibling with more than this share of a series' layers is the body of a network, not one of its blocks."""


def early_affine_names(model: nn.Module) -> list[str]:
    """Name the weights and biases of the normalisation layers before the last quarter of the blocks.

    The names are those of `model.named_parameters()`: `network.fork(early_affine_names(network.model))` owns these.
    Where there are no repeated blocks, every normalisation layer counts as one; a single layer is always named.

    >>> blocks = [nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(4)]
    >>> early_affine_names(nn.Sequential(*blocks, nn.LayerNorm(2)))
    ['0.1.weight', '0.1.bias', '1.1.weight', '1.1.bias', '2.1.weight', '2.1.bias']
    """
    layers = dict(affine_layers(model))
    names, blocks = list(layers), affine_blocks(model)
    early = names[: names.index(blocks[-last_quarter(len(blocks))][0])] if blocks else []
    tensors = [getattr(layers[name], kind, None) for name in early or names for kind in ("weight", "bias")]
    wanted = {id(tensor) for tensor in tensors if isinstance(tensor, Tensor)}
    return [name for name, parameter in model.named_parameters() if id(parameter) in wanted]


def last_quarter(count: int) -> int:
    """How many of the last blocks are left out: a quarter, rounded, and one at least.

    >>> [last_quarter(count) for count in (3, 4, 9, 12, 24)]
    [1, 1, 2, 3, 6]
    """
    return max(1, (count + 2) // 4)


def affine_blocks(model: nn.Module) -> list[list[str]]:
    """The names of the normalisation layers in each of the repeated blocks, in order.

    The blocks are the outermost series of at least three siblings of one class whose names differ in the number at
    their end, such as `layer1` to `layer4`, and that hold most of the layers. Without such a series every layer is one.

    >>> affine_blocks(nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2))))
    [['0'], ['1.0']]
    """
    names = [name for name, _ in affine_layers(model)]
    series = [list(blocks.values()) for blocks in _series(model, names).values()]
    trunks = [blocks for blocks in series if _is_trunk(blocks, len(names))]
    return max(trunks, key=_size, default=[[name] for name in names])  # the first of equals is the outermost


def _series(model: nn.Module, names: list[str]) -> dict[tuple[str, str, type], dict[str, list[str]]]:
    """The layers of each numbered sibling, by parent, name without the number, and class; outer ones first."""
    series: dict[tuple[str, str, type], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        parts = name.split(".")
        for depth, part in enumerate(parts, start=1):
            place, parent = ".".join(parts[:depth]), ".".join(parts[: depth - 1])
            if numbered := re.fullmatch(r"(.*?)\d+", part):
                series[parent, numbered[1], type(model.get_submodule(place))][place].append(name)
    return series


def _is_trunk(blocks: list[list[str]], layers: int) -> bool:
    size = _size(blocks)
    return len(blocks) >= 3 and 2 * size > layers and max(map(len, blocks)) <= LOPSIDED * size


def _size(blocks: list[list[str]]) -> int:
    return sum(map(len, blocks))
