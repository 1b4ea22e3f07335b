"""Threads, processes and signals, on real adapters."""

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.runtime import locks
from resitta.runtime.locks import LockRank, defer_signals, new_lock, synchronized
from resitta.training.strong_view import identity

# A forked process cannot use the OpenMP threads that torch started in its parent.
pytestmark = pytest.mark.usefixtures("one_thread")


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def in_threads(*tasks: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tent", "note", "resitta"])
def test_concurrent_calls_are_the_same_calls_one_after_the_other(model: nn.Module, method: str) -> None:
    adapter, alone = resitta.adapt(model, method), resitta.adapt(model, method)

    def serve() -> None:
        for _ in range(6):
            adapter(images(40))

    in_threads(*[serve] * 4)
    for _ in range(24):  # the calls are equal, so that their order does not matter
        alone(images(40))
    assert same(adapter.state_dict(), alone.state_dict())


def test_nothing_looks_at_an_adapter_in_the_middle_of_a_step(model: nn.Module) -> None:
    inside, seen = threading.Event(), []

    def slow(batch: Tensor) -> Tensor:
        inside.set()
        time.sleep(0.3)
        seen.append("updated")
        return batch

    adapter = resitta.adapt(model, "resitta", strong_view=slow)

    def look() -> None:
        assert inside.wait(10)
        for use in (adapter.state_dict, adapter.export, lambda: adapter.stats, adapter.reset):
            use()
            seen.append("looked")

    in_threads(lambda: adapter(images(64)), look)
    assert seen == ["updated", *["looked"] * 4]


def test_pauses_of_several_threads_may_overlap(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "tent")
    one, other = adapter.paused(), adapter.paused()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    adapter(images(4))
    assert adapter.samples == 0, "the other pause still holds"
    other.__exit__(None, None, None)
    adapter(images(4))
    assert adapter.samples == 4


# --- copies and processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda adapter: pickle.loads(pickle.dumps(adapter))])
def test_a_copy_goes_on_alike_and_on_its_own(model: nn.Module, method: str, copied: Callable[[Any], Any]) -> None:
    adapter = resitta.adapt(model, method, guard=True)
    adapter(images(90))
    twin, before = copied(adapter), adapter.state_dict()
    logits = twin(images(90, seed=1))
    assert same(before, adapter.state_dict())
    assert torch.equal(adapter(images(90, seed=1)), logits)
    assert same(twin.state_dict(), adapter.state_dict())
    adapter.reset()
    twin.reset()
    assert same(twin.state_dict(), adapter.state_dict())


def test_a_copy_made_in_a_pause_learns(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "tent")
    with adapter.paused():
        twin = copy.deepcopy(adapter)
    twin(images(4))
    assert twin.samples == 4


def use(adapter: resitta.Adapter, answer: Any) -> None:
    torch.set_num_threads(1)
    logits = [adapter(images(90, seed=seed)).tolist() for seed in (1, 2)]
    answer.put(logits)


@pytest.mark.parametrize(("start", "method"), [("fork", "cotta"), ("fork", "resitta"), ("spawn", "resitta")])
def test_another_process_goes_on_alike_and_on_its_own(model: nn.Module, start: str, method: str) -> None:
    adapter = resitta.adapt(model, method, guard=True)
    adapter(images(90))
    before = adapter.state_dict()
    context: Any = multiprocessing.get_context(start)
    answer = context.Queue()
    process = context.Process(target=use, args=(adapter, answer))
    process.start()
    logits = answer.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    assert same(before, adapter.state_dict()), "what a child learns is its own"
    assert [adapter(images(90, seed=seed)).tolist() for seed in (1, 2)] == logits


def test_a_fork_waits_for_the_step_of_another_thread(model: nn.Module) -> None:
    inside = threading.Event()

    def slow(batch: Tensor) -> Tensor:
        inside.set()
        time.sleep(0.3)
        return batch

    adapter, alone = (resitta.adapt(model, "resitta", strong_view=view) for view in (slow, identity))
    alone(images(64))  # not in the child: torch's backward pass may hang there once another thread has computed
    server = threading.Thread(target=adapter, args=(images(64),))
    server.start()
    assert inside.wait(10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        ok = False
        try:
            signal.alarm(20)  # a lock that nobody can release would keep the child forever
            ok = same(adapter.state_dict(), alone.state_dict()) and adapter(images(3)).shape == (3, 5)
        finally:
            os.write(write, b"whole" if ok else b"broken")
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    server.join(30)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"whole"
    assert adapter(images(3)).shape == (3, 5), "the parent's lock is free too"


def fork_and_wait() -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_takes_all_locks_by_rank_and_then_by_age() -> None:
    made = [
        new_lock(rank) for rank in (LockRank.MOMENT, LockRank.ADAPTER, LockRank.QUEUE, LockRank.CALLS, LockRank.ADAPTER)
    ]
    locks._take_all()
    taken = [made.index(lock) for lock in locks._fork.held if lock in made]
    locks._give_all_back()
    assert taken == [1, 4, 3, 2, 0]


def test_a_fork_gives_way_to_who_takes_locks_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.2)
    first, second = new_lock(LockRank.ADAPTER), new_lock(LockRank.CALLS)
    inside = threading.Event()

    def against_the_order() -> None:
        with second:
            inside.set()
            time.sleep(0.1)  # the fork has the first by now
            with first:
                pass

    other = threading.Thread(target=against_the_order)
    other.start()
    assert inside.wait(10)
    fork_and_wait()
    other.join(30)
    assert not other.is_alive()


def test_a_lock_that_is_made_while_a_fork_waits_is_taken_too() -> None:
    made: list[Any] = []

    class Making:
        def acquire(self, timeout: float) -> bool:
            if not made:
                made.append(new_lock())
            return True

        def release(self) -> None:
            pass

    making = Making()
    locks._locks[LockRank.QUEUE, -1] = making
    locks._take_all()
    taken = made[0] in locks._fork.held
    locks._give_all_back()
    assert taken
    assert locks._locks.pop((LockRank.QUEUE, -1)) is making


def test_no_lock_is_made_while_a_process_is_copied() -> None:
    locks._take_all()
    making = threading.Thread(target=new_lock, daemon=True)
    making.start()
    making.join(0.2)
    waits = making.is_alive()
    locks._give_all_back()
    making.join(30)
    assert waits
    assert not making.is_alive()


def test_ctrl_c_while_a_fork_waits_comes_after_it() -> None:
    lock, inside = new_lock(), threading.Event()

    def busy() -> None:
        with lock:
            inside.set()
            time.sleep(0.5)

    other = threading.Thread(target=busy)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        other.start()
        assert inside.wait(10)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            fork_and_wait()
            time.sleep(20)
        assert lock.acquire(timeout=30), "nobody has it"
        lock.release()
    finally:
        signal.signal(signal.SIGINT, before)
        other.join(30)


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_an_update_waits_until_it_is_over(model: nn.Module, number: signal.Signals) -> None:
    def interrupt(batch: Tensor) -> Tensor:
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        return batch

    adapter = resitta.adapt(model, "resitta", strong_view=interrupt)
    alone = resitta.adapt(model, "resitta", strong_view=identity)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            adapter(images(64))
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    alone(images(64))
    assert same(adapter.state_dict(), alone.state_dict())
    assert adapter(images(3)).shape == (3, 5)


def test_ctrl_c_at_random_moments_leaves_a_consistent_adapter(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8, capacity=8)
    states, strikes = [adapter.state_dict()], 0
    for seed in range(40):  # all states an undisturbed run goes through
        adapter(images(8, seed))
        states.append(adapter.state_dict())
    adapter.reset()
    for attempt in range(30):
        timer = threading.Timer(0.002 * (attempt % 10), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                adapter(images(8, adapter.samples // 8 % 40))
            pytest.fail("SIGINT did not interrupt within 30 s")
        except KeyboardInterrupt:
            strikes += 1
        timer.join()
        if adapter.samples <= 40 * 8:
            assert same(adapter.state_dict(), states[adapter.samples // 8])
    assert strikes == 30


def test_handlers_that_are_not_pythons_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_every_signal_that_came_is_handled_once() -> None:
    came: list[int] = []
    before = [
        signal.signal(number, lambda number, _: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        with defer_signals():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert came == []
        assert came == [signal.SIGINT, signal.SIGTERM]
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_an_error_inside_does_not_hide_the_interrupt() -> None:
    @synchronized
    def fail(_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("inside")

    with pytest.raises(KeyboardInterrupt) as caught:
        fail(SimpleNamespace(lock=new_lock()))
    assert isinstance(caught.value.__context__, ValueError)
