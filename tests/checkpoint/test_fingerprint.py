import copy

import numpy as np
import pytest
import torch
from torch import nn

from resitta.checkpoint.fingerprint import Fingerprint, raw_bytes


def test_a_copy_has_the_same_fingerprint(model: nn.Module) -> None:
    twin = copy.deepcopy(model)
    assert (Fingerprint(twin).structure, Fingerprint(twin).content) == (
        Fingerprint(model).structure,
        Fingerprint(model).content,
    )


def test_memory_layout_does_not_matter(model: nn.Module) -> None:
    before = Fingerprint(model).content
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert Fingerprint(model).content == before


def test_every_value_counts(model: nn.Module) -> None:
    seen = {Fingerprint(model).content}
    for tensor in (*model.parameters(), *model.buffers()):
        with torch.no_grad():
            tensor.view(-1)[-1] += 1
        seen.add(Fingerprint(model).content)
    assert len(seen) == 1 + len([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_is_content_not_structure(model: nn.Module, dtype: torch.dtype) -> None:
    before = Fingerprint(model).structure, Fingerprint(model).content
    model.to(dtype)
    assert Fingerprint(model).structure == before[0]
    assert Fingerprint(model).content != before[1]


def test_names_and_shapes_are_structure() -> None:
    layers = [nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 4, bias=False), nn.Sequential(nn.Linear(3, 4))]
    assert len({Fingerprint(layer).structure for layer in layers}) == 4


def test_an_empty_tensor_has_no_bytes_whatever_its_strides() -> None:
    assert not raw_bytes(torch.tensor(np.empty(0, np.int64)))
