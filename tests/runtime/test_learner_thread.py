"""The thread of an adapter that learns in the background: when it begins and ends, and what processes make of it."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.tools import Gate
from torch import Tensor, nn

import resitta
from resitta.errors import WorkerLost
from resitta.runtime.learn_queue import Counters, LearnQueue, Samples
from resitta.runtime.learner_thread import LearnerThread
from resitta.runtime.locks import new_lock

# A forked process cannot use the OpenMP threads that torch started in its parent.
pytestmark = pytest.mark.usefixtures("one_thread")


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def adapt(model: nn.Module, **options: Any) -> resitta.Adapter:
    return resitta.adapt(model, "resitta", background=True, **options)


def learner_thread(adapter: resitta.Adapter) -> LearnerThread:
    assert adapter.background is not None
    return adapter.background.thread


def threads() -> int:
    return sum(thread.name == "resitta-background" for thread in threading.enumerate())


def test_the_thread_begins_with_the_first_batch_and_ends_with_the_adapter(model: nn.Module) -> None:
    before = threads()
    adapter = adapt(model)
    assert threads() == before
    adapter(images(64))
    assert threads() == before + 1
    there = weakref.ref(adapter)
    adapter.sync()
    del adapter
    gc.collect()
    assert there() is None
    assert threads() == before


def test_an_adapter_may_go_in_the_middle_of_an_update(model: nn.Module, gate: Gate) -> None:
    before = threads()
    adapter = adapt(model, strong_view=gate)
    adapter(images(64))
    assert gate.reached.wait(20)
    del adapter
    gate.open.set()
    end = time.monotonic() + 20
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()
    assert threads() == before


def test_closed_it_only_predicts(model: nn.Module) -> None:
    adapter, before = adapt(model), threads()
    adapter(images(64))
    assert adapter.background is not None
    adapter.background.close()
    assert threads() == before
    assert adapter.stats.updates == 1
    with adapter.paused():
        learned = adapter(images(8))
    assert torch.equal(adapter(images(8)), learned)
    adapter.sync()
    assert (adapter.samples, adapter.background.dropped) == (64, 8)


def test_the_holder_of_the_lock_is_alone_with_the_learner(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(64))
    with adapter.lock, adapter.lock:
        assert adapter.samples == 64, "what was offered before has been learned from"
        for seed in range(3):
            adapter(images(64, seed))
        learner_thread(adapter).settle()
        adapter.sync()
        time.sleep(0.1)
        assert adapter.samples == 64
    adapter.sync()
    assert adapter.samples == 256


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda adapter: pickle.loads(pickle.dumps(adapter))])
def test_a_copy_has_a_thread_of_its_own(model: nn.Module, copied: Callable[[Any], Any]) -> None:
    adapter = adapt(model, guard=True)
    adapter(images(90))
    twin = copied(adapter)
    logits = twin(images(90, seed=1))
    twin.sync()
    adapter.sync()
    assert torch.equal(adapter(images(90, seed=1)), logits)
    assert adapter.stats == twin.stats
    assert learner_thread(twin) is not learner_thread(adapter)


def test_a_forked_process_learns_on(model: nn.Module, gate: Gate) -> None:
    adapter = adapt(model, strong_view=gate)
    adapter(images(64))
    assert gate.reached.wait(20)
    adapter(images(30, seed=1))  # waits in the queue while the process forks
    threading.Timer(0.2, gate.open.set).start()
    learner_thread(
        adapter
    )._holds += 1  # as in a thread that waits for the lock, which the forked process does not have
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        ok = False
        try:
            signal.alarm(30)  # a lock that nobody can release would keep the child forever
            adapter(images(34, seed=2))
            ok = adapter.stats.updates == 2 and adapter.samples == 128
        finally:
            os.write(write, b"learned" if ok else b"broken")
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"learned"
    with learner_thread(adapter)._changed:
        learner_thread(adapter)._holds -= 1
        learner_thread(adapter)._changed.notify_all()
    adapter.sync()
    assert adapter.samples == 94


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether a check succeeds in a forked process, within a time limit."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            signal.alarm(30)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_fork_before_the_first_batch_forgets_who_waits_for_the_lock(model: nn.Module) -> None:
    adapter = adapt(model)
    learner_thread(adapter)._holds += 1  # as in another thread that waits for the lock

    def learns() -> bool:
        adapter(images(8))
        return adapter.stats.samples == 8

    assert in_a_fork(learns)


def test_a_fork_by_the_holder_of_the_lock_keeps_it(model: nn.Module) -> None:
    adapter = adapt(model)

    def keeps_it() -> bool:
        adapter(images(8))
        alone = adapter.samples == 0
        learner_thread(adapter).__exit__()
        learned = adapter.stats.samples
        adapter(images(8))
        return alone and learned == 8 and adapter.stats.samples == 16

    with adapter.lock:
        assert in_a_fork(keeps_it)


CALLING = """
import os, sys, threading, torch, resitta
from resitta.conformance import tiny_network
torch.set_num_threads(1)
adapter, images = resitta.adapt(tiny_network(), "resitta", background=True, update_every=16), torch.rand(4, 3, 16, 16)
def serve():
    while True:
        adapter(images)
for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
"""
FORKS = """
for _ in range(8):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""
LOADER = """
data = torch.utils.data.TensorDataset(torch.rand(8, 3, 16, 16))
for _ in range(2):
    assert len(list(torch.utils.data.DataLoader(data, num_workers=2))) == 8
"""


@pytest.mark.slow
@pytest.mark.parametrize("forks", [FORKS, LOADER])
def test_a_fork_and_calls_in_other_threads_do_not_wait_for_each_other(forks: str) -> None:
    end = "print('done', flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", CALLING + forks + end], capture_output=True, timeout=60, check=False)
    assert done.stdout == b"done\n"


@pytest.mark.slow
def test_a_process_ends_in_peace_in_the_middle_of_an_update() -> None:
    code = (
        "import torch, resitta; from resitta.conformance import tiny_network\n"
        "torch.set_num_threads(1)\n"
        "adapter = resitta.adapt(tiny_network(), 'resitta', background=True, update_every=2)\n"
        "for _ in range(5): adapter(torch.rand(50, 3, 16, 16))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_waiting_leaves_the_thread_at_work(model: nn.Module, gate: Gate) -> None:
    adapter = adapt(model, strong_view=gate)
    adapter(images(64))
    assert gate.reached.wait(20)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            adapter.sync()
    finally:
        signal.signal(signal.SIGINT, before)
    gate.open.set()
    adapter.sync()
    assert adapter.stats.updates == 1


# --- with another user than an adapter --------------------------------------------------------------------------------


class User:
    """Notes what it is asked to do; fails with samples of the client "bad", and uses none of "other"."""

    def __init__(self, **options: Any) -> None:
        self.done: list[Any] = []
        self.queue = LearnQueue(room=16, batch=4)
        self.thread = LearnerThread(self.queue, learn=self.learn, failed=self.failed, **options)

    def learn(self, batch: list[Samples]) -> int:
        self.done.append([samples.client for samples in batch])
        if batch[0].client == "bad":
            raise ZeroDivisionError
        return sum(samples.client != "other" for samples in batch)

    def failed(self, error: Exception) -> None:
        self.done.append(type(error))

    def offer(self, clients: str | list[str]) -> None:
        self.queue.offer([Samples(torch.zeros(1, 1), None, client) for client in clients])


def test_tasks_run_in_order_before_the_next_batch() -> None:
    lock = new_lock()
    user = User(lock=lock)
    user.offer("ab")
    with lock:
        futures = [user.thread.submit(partial(user.done.append, number)) for number in range(3)]
    for future in futures:
        future.result(10)
    user.thread.settle()
    assert user.done == [0, 1, 2, ["a", "b"]]
    user.thread.close()


def test_a_batch_or_a_task_wakes_the_thread_and_single_samples_wait_for_others() -> None:
    user = User(gather=60.0)
    user.thread.start()
    user.offer("aaa")
    time.sleep(0.05)
    assert user.done == []
    user.offer("a")
    user.thread.settle()
    user.offer("b")
    user.thread.submit(partial(user.done.append, "task")).result(10)
    user.thread.settle()
    assert user.done == [["a"] * 4, "task", ["b"]]
    user.thread.close()


def test_samples_that_fail_or_are_screened_are_counted_and_the_thread_goes_on() -> None:
    user = User()
    for clients in (["bad"], ["one", "other"], ["one"]):
        user.offer(clients)
        user.thread.settle()
    assert user.done == [["bad"], ZeroDivisionError, ["one", "other"], ["one"]]
    assert user.queue.counters == Counters(offered=4, learned=2, skipped=1, screened=1)
    user.thread.close()


def test_an_abandoned_task_is_not_done() -> None:
    user, gate = User(), threading.Event()
    user.thread.submit(lambda: gate.wait(10))
    abandoned = user.thread.submit(lambda: pytest.fail("nobody wants it"))
    assert abandoned.cancel()
    gate.set()
    user.thread.submit(lambda: None).result(10)
    user.thread.close()


def test_failures_of_tasks_reach_the_future() -> None:
    user = User()
    assert isinstance(user.thread.submit(lambda: 1 // 0).exception(10), ZeroDivisionError)
    user.thread.close()


def test_closing_runs_the_tasks_submitted_so_far_and_takes_no_more() -> None:
    user, gate = User(), threading.Event()
    user.thread.submit(lambda: gate.wait(10))
    user.offer("a")
    last = user.thread.submit(lambda: "done")
    threading.Timer(0.1, gate.set).start()
    user.thread.close()
    assert (last.result(0), user.thread.alive) == ("done", False)
    assert user.queue.counters == Counters(offered=1, dropped=1)
    with pytest.raises(WorkerLost, match="takes no further tasks"):
        user.thread.submit(lambda: None)


def test_a_tick_comes_without_samples_and_tasks() -> None:
    class Ticking(User):
        ticked = threading.Event()

        def __init__(self) -> None:
            super().__init__(tick=self.tick, every=0.01)

        def tick(self) -> None:
            self.ticked.set()

    user = Ticking()
    user.thread.start()
    assert user.ticked.wait(10)
    user.thread.close()


def test_tasks_and_batches_hold_the_lock_they_were_given() -> None:
    lock = new_lock()
    user = User(lock=lock)
    with lock:
        future = user.thread.submit(lambda: None)
        with pytest.raises(TimeoutError):
            future.result(0.1)
    future.result(10)
    user.thread.close()
