import pytest
import torch

from resitta.accel.varying_sizes import varying_sizes


@pytest.mark.parametrize("benchmark", [True, False])
def test_what_the_caller_has_set_is_there_again(monkeypatch: pytest.MonkeyPatch, benchmark: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    with varying_sizes():
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark is benchmark
