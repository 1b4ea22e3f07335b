"""A pause ends however its block ends."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from tests.tools import Gate
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same

METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Handle Ctrl-C as Python does, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_while_a_pause_waits_does_not_leave_the_adapter_paused(
    model: nn.Module, gate: Gate, background: bool
) -> None:
    adapter = resitta.adapt(model, "resitta", strong_view=gate, background=background)
    other = threading.Thread(target=adapter, args=(images(64),))
    other.start()
    assert gate.reached.wait(20)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(0.3, gate.open.set).start()
    with pytest.raises(KeyboardInterrupt), adapter.paused():
        pass
    other.join(30)
    adapter(images(8))
    adapter.sync()
    assert adapter.samples == 72


def test_any_handler_may_raise_while_a_pause_waits(model: nn.Module, gate: Gate) -> None:
    class TooLate(BaseException):
        pass

    def handle(number: int, frame: FrameType | None) -> None:
        raise TooLate

    adapter = resitta.adapt(model, "resitta", strong_view=gate, background=True)
    adapter(images(64))
    assert gate.reached.wait(20)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(TooLate), adapter.paused():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    gate.open.set()
    adapter(images(8))
    adapter.sync()
    assert adapter.samples == 72


def test_a_handler_that_raises_while_a_turn_is_awaited_leaves_the_worker_at_work(model: nn.Module) -> None:
    class TooLate(BaseException):
        pass

    def handle(number: int, frame: FrameType | None) -> None:
        raise TooLate

    adapter = resitta.adapt(model, "resitta", background=True)
    inside, leave = threading.Event(), threading.Event()

    def have_the_turn() -> None:
        with adapter.lock:
            inside.set()
            leave.wait(30)

    other = threading.Thread(target=have_the_turn)
    other.start()
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert inside.wait(20)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(TooLate), adapter.paused():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
        leave.set()
        other.join(30)
    adapter(images(8))
    adapter.sync()
    assert adapter.samples == 8


def strike_at(event: int) -> Callable[..., Any]:
    """A trace function that sends Ctrl-C at the n-th line that runs in the library or in contextlib."""
    count = 0

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal count
        if "resitta" not in frame.f_code.co_filename and "contextlib" not in frame.f_code.co_filename:
            return None
        if kind == "line":
            count += 1
            if count == event:
                signal.raise_signal(signal.SIGINT)
        return trace

    return trace


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_at_any_line_of_a_pause_does_not_leave_the_adapter_paused(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "source")
    strikes, outside = 0, sys.gettrace()
    for event in range(1, 1000):
        try:
            sys.settrace(strike_at(event))
            with adapter.paused():
                pass
        except KeyboardInterrupt:
            strikes += 1
        else:
            break
        finally:
            sys.settrace(outside)
        assert not adapter.pauses, f"still paused after a strike at line {event}"
        adapter.reset()  # nor does it keep the lock
    assert strikes > 20


def test_a_pause_waits_for_the_step_of_another_thread(model: nn.Module, gate: Gate) -> None:
    adapter = resitta.adapt(model, "resitta", strong_view=gate)
    step = threading.Thread(target=adapter, args=(images(64),))
    step.start()
    assert gate.reached.wait(20)
    seen: list[int] = []

    def pause() -> None:
        with adapter.paused():
            seen.append(adapter.samples)

    pausing = threading.Thread(target=pause)
    pausing.start()
    time.sleep(0.1)
    assert not seen
    gate.open.set()
    pausing.join(30)
    step.join(30)
    assert seen == [64]


def test_threads_that_pause_at_the_same_time_lose_no_count(model: nn.Module) -> None:
    adapter, interval = resitta.adapt(model, "source"), sys.getswitchinterval()

    def pause() -> None:
        for _ in range(200):
            with adapter.paused():
                assert adapter.pauses

    threads = [threading.Thread(target=pause) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not adapter.pauses
    adapter(images(4))
    assert adapter.samples == 4


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_paused_adapter_does_not_learn_from_a_batch_with_nan(model: nn.Module, method: str, background: bool) -> None:
    if background and method not in ("resitta", "rotta"):
        pytest.skip("does not learn in the background")
    adapter = resitta.adapt(model, method, non_finite="skip", background=background)
    adapter(images(70))
    before = adapter.state_dict()
    batch = images(70, seed=1)
    batch[3] = torch.nan
    with adapter.paused():
        logits = adapter(batch)
    assert logits.isfinite().all()
    assert same(before, adapter.state_dict())
