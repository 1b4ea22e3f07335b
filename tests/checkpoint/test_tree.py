import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from resitta.checkpoint.tree import put_together, same, take_apart
from resitta.errors import BadState

Same = Callable[[Any, Any], bool]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
tensors = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | tensors
keys = st.text("ab/$", max_size=3) | st.integers(0, 3)
trees = st.recursive(
    leaves,
    lambda child: (
        st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
        | st.dictionaries(keys, child, max_size=3)
        | st.dictionaries(st.sampled_from(["$tensor", "$tuple", "$dict"]), child, max_size=1)
    ),
    max_leaves=10,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_any_tree_comes_back_as_it_was(identical: Same, tree: Any) -> None:
    parts: dict[str, Tensor] = {}
    text = json.dumps(take_apart(tree, parts))
    assert identical(put_together(json.loads(text), parts), tree)


def test_tensors_are_copied_even_where_they_share_memory() -> None:
    parts: dict[str, Tensor] = {}
    base = torch.zeros(4)
    take_apart([base, base[:2], base.view(2, 2).t()], parts)
    base.fill_(1)
    assert all(part.sum() == 0 and part.is_contiguous() for part in parts.values())
    assert len({part.data_ptr() for part in parts.values()}) == 3


@pytest.mark.parametrize("value", [np.zeros(2), {1, 2}, object(), {(1, 2): 3}, b"bytes"])
def test_what_a_file_cannot_hold_is_named(value: Any) -> None:
    with pytest.raises(BadState, match=rf"^/mine/x is a .*{type(value).__name__}, which a state file cannot hold"):
        take_apart({"mine": {"x": value}}, {})


def test_equal_tensors_are_kept_once_and_come_back_apart() -> None:
    parts: dict[str, Tensor] = {}
    tree = take_apart(
        {"a": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3).double(), "d": -torch.zeros(3)}, parts
    )
    assert sorted(parts) == ["a", "c", "d"], "another type and another sign are not equal"
    again = put_together(tree, parts)
    again["a"].fill_(1)
    assert again["b"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True),
        (torch.tensor([1.0]), torch.tensor([1]), False),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.tensor([True]), torch.tensor([True]), True),
        (torch.zeros(1), torch.zeros(1, 1), False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        (True, 1, False),
        ([1, (2.0, np.ones(2))], [1, (2.0, np.ones(2))], True),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array(["a"]), np.array(["b"]), False),
        (None, torch.zeros(1), False),
    ],
)
def test_same_is_bit_for_bit(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal
