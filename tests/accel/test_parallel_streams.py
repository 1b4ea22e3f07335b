import pytest
import torch

from resitta.accel.cuda_graphs import ParallelStreams, side_stream

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="only CUDA graphs have branches")


def test_elsewhere_work_is_done_in_order() -> None:
    branch, done = ParallelStreams(), []
    with branch(torch.ones(1)):
        done.append("branch")
    done.append("trunk")
    branch.join()
    assert done == ["branch", "trunk"]
    assert branch.stream is None


@needs_cuda
def test_without_a_recording_work_stays_in_its_stream() -> None:
    branch, x, before = ParallelStreams(), torch.ones(1, device="cuda"), torch.cuda.current_stream()
    with branch(x):
        assert torch.cuda.current_stream() == before
    branch.join()


@needs_cuda
def test_all_branches_share_one_stream() -> None:
    x = torch.ones(1, device="cuda")
    assert side_stream(x.device) == side_stream(x.device)


@needs_cuda
def test_a_recording_computes_the_same_in_branches() -> None:
    branch, x = ParallelStreams(), torch.zeros(1 << 20, device="cuda")
    with branch(x):  # makes the stream, which a recording must not
        pass
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with branch(x):
            assert torch.cuda.current_stream() == side_stream(x.device)
            squares = x.square()
            for _ in range(20):
                squares = squares + 1
        cubes = x.pow(3)
        branch.join()
        total = squares + cubes
    for value in (1.0, 2.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert (total == value**2 + 20 + value**3).all()
