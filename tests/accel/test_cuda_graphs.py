import copy
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt, list_methods
from resitta.accel.cuda_graphs import WARM_UP, CudaGraphs
from resitta.method import get_method, takes_source

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="replays need a CUDA device")


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_without_a_cuda_device_functions_are_called_as_they_are() -> None:
    replay, x = CudaGraphs(), torch.ones(3)
    results = [replay(double, x) for _ in range(WARM_UP + 2)]
    assert len({result.data_ptr() for result in results}) == len(results), "a replay would return the same tensor"


def test_it_has_no_state_and_can_be_copied() -> None:
    replay = CudaGraphs()
    replay.enabled = False
    replay._place(0, torch.ones(2))
    assert not replay.state_dict()
    for twin in (copy.deepcopy(replay), pickle.loads(pickle.dumps(replay))):
        assert not twin.enabled
        assert not twin._places
        assert torch.equal(twin(double, torch.ones(2)), torch.full((2,), 2.0))


def test_threads_record_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    recording: list[int] = []

    @contextmanager
    def graph(*args: object, **kwargs: object) -> Iterator[None]:
        recording.append(len(recording))
        yield
        recording.pop()

    def slow(x: Tensor) -> Tensor:
        time.sleep(0.05)
        assert recording == [0], "another thread records as well"
        return 2 * x

    for name in ("CUDAGraph", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *args: None)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda _: CudaGraphs()._record(slow, (torch.ones(3),)), range(4)))
    assert all(record is not None and record.result is record.inputs[0] for record in records)


@needs_cuda
def test_from_the_third_call_on_the_recording_is_used() -> None:
    replay = CudaGraphs()
    for value in range(WARM_UP + 3):
        x = torch.full((3,), float(value), device="cuda")
        assert torch.equal(replay(double, x), 2 * x)
    assert len(replay._recordings) == 1


@needs_cuda
def test_a_chain_of_functions_works_in_one_place() -> None:
    def shift(x: Tensor, by: Tensor) -> Tensor:
        return x + by

    replay, by = CudaGraphs(), torch.tensor(10.0, device="cuda")
    for value in range(WARM_UP + 3):
        x = torch.full((3,), float(value), device="cuda")
        result = replay(double, replay(shift, replay(double, x), by))
        assert torch.equal(result, 2 * (2 * torch.full_like(x, value) + by))
        assert (x == value).all(), "the caller's tensor must stay"
    assert len(replay._recordings) == 2
    assert len(replay._places) == 2


@needs_cuda
def test_a_result_may_come_back_as_any_input() -> None:
    def minus(x: Tensor, y: Tensor) -> Tensor:
        return x - y

    replay = CudaGraphs()
    for value in range(WARM_UP + 3):
        x = torch.full((3,), float(value), device="cuda")
        assert torch.equal(replay(minus, x, replay(double, x)), -x)
        assert torch.equal(replay(minus, replay(double, x), x), x)


@needs_cuda
@pytest.mark.parametrize("change", [lambda net: net.to(torch.float64), lambda net: net.load_state_dict({})])
def test_moving_and_loading_forget_recordings(change: object) -> None:
    net = nn.Sequential(CudaGraphs()).cuda()
    for _ in range(WARM_UP + 1):
        net[0](double, torch.ones(3, device="cuda"))
    assert net[0]._recordings
    change(net)  # type: ignore[operator]
    assert not net[0]._recordings


@needs_cuda
def test_what_waits_for_the_device_is_called_as_it_is() -> None:
    def waits(x: Tensor) -> Tensor:
        return x * x.sum().item()

    replay, x, stream = CudaGraphs(), torch.ones(3, device="cuda"), torch.cuda.current_stream()
    for _ in range(WARM_UP + 3):
        assert torch.equal(replay(waits, x), 3 * x)
        assert torch.cuda.current_stream() == stream, "a recording that failed left the caller in its stream"
        assert torch.rand(2, device="cuda").isfinite().all(), "or the generator of random numbers waiting"
    assert not replay._recordings


@needs_cuda
@pytest.mark.parametrize("method", list_methods())
def test_every_method_predicts_the_same_with_and_without(method: str) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    model = nn.Sequential(*layers).cuda()
    images = torch.rand(6, 64, 3, 32, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    runs = []
    for graphs in (True, False):
        source: dict[str, Any] = {"source": images[0]} if takes_source(get_method(method)) else {}
        adapter = adapt(model, method, seed=1, cuda_graphs=graphs, **source)
        runs.append(torch.stack([adapter(batch) for batch in images]))
    torch.testing.assert_close(*runs, rtol=1e-3, atol=1e-3)
