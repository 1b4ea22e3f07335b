"""A shelf hands over all tensors of one put, or none."""

import threading

import pytest
import torch
from torch import Tensor

from resitta.runtime.weight_handoff import WeightHandoff


def test_only_the_newest_put_is_taken_and_only_once() -> None:
    source, target = [torch.zeros(3), torch.zeros(2)], [torch.ones(3), torch.ones(2)]
    place = target[0].data_ptr()
    shelf = WeightHandoff(source, target)
    assert not shelf.take()
    for value in (5.0, 7.0):
        for tensor in source:
            tensor.fill_(value)
        shelf.put()
    source[0].fill_(9.0)
    assert shelf.take()
    assert [tensor.tolist() for tensor in target] == [[7.0] * 3, [7.0] * 2]
    assert target[0].data_ptr() == place, "recordings of the target stay valid"
    assert not shelf.take()


def test_nothing_is_taken_in_the_middle_of_a_put(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = [torch.ones(3), torch.ones(2)], [torch.zeros(3), torch.zeros(2)]
    shelf, copy, middles = WeightHandoff(source, target), torch._foreach_copy_, []

    def slowly(to: list[Tensor], values: list[Tensor]) -> None:
        copy(to[:1], values[:1])
        if values is source:
            middles.append(shelf.take())
        copy(to[1:], values[1:])

    monkeypatch.setattr(torch, "_foreach_copy_", slowly)
    shelf.put()
    shelf.put()  # the first one was not taken yet, and half of it is gone
    assert middles == [False, False]
    assert shelf.take()
    assert [tensor.tolist() for tensor in target] == [[1.0] * 3, [1.0] * 2]


def test_two_threads_never_mix_two_puts() -> None:
    source, target = ([torch.zeros(5000) for _ in range(20)] for _ in range(2))
    shelf, stop = WeightHandoff(source, target), threading.Event()

    def write() -> None:
        for version in range(1, 400):
            torch._foreach_zero_(source)
            torch._foreach_add_(source, version)
            shelf.put()
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    while not stop.is_set():
        taken += shelf.take()
        assert len({float(value) for tensor in target for value in (tensor[0], tensor[-1])}) == 1
    writer.join()
    assert taken > 1
