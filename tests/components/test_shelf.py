"""A shelf hands over all tensors of one put, or none."""

import threading

import torch

from resitta.components.shelf import Shelf


def test_only_the_newest_put_is_taken_and_only_once() -> None:
    source, target = [torch.zeros(3), torch.zeros(2)], [torch.ones(3), torch.ones(2)]
    place = target[0].data_ptr()
    shelf = Shelf(source, target)
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


def test_two_threads_never_mix_two_puts() -> None:
    source, target = ([torch.zeros(5000) for _ in range(20)] for _ in range(2))
    shelf, stop = Shelf(source, target), threading.Event()

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
