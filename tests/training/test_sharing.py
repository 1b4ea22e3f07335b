"""`Network.fork` is built on these, and tests/training/test_network.py checks much of them through it."""

import copy

import pytest
import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel
from resitta.training.sharing import (
    all_parameters,
    borrowed,
    match_norm_precision,
    once_per_tensor,
    raise_norm_precision,
    share,
    tie,
    unshare,
)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.other(self.one(x))
        return result


@pytest.mark.parametrize("as_buffers", [False, True])
def test_a_copy_owns_what_it_trains_and_borrows_the_rest(as_buffers: bool) -> None:
    model, x = net(), torch.rand(5, 3)
    twin = share(model, own=["1.weight", "1.bias"], borrow_as_buffers=as_buffers)
    trained = [name for name, p in twin.named_parameters() if p.requires_grad]
    assert trained == ["1.weight", "1.bias"]
    assert (len(list(twin.parameters())) == 2) is as_buffers
    for name, parameter in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        tensor = getattr(twin.get_submodule(module), leaf)
        assert (tensor.data_ptr() == parameter.data_ptr()) is (name not in trained)
        assert torch.equal(tensor, parameter)
    assert torch.equal(twin(x), model(x))
    before = copy.deepcopy(model.state_dict())
    for tensor in (twin[1].weight, twin[1].bias, twin[1].running_mean):  # type: ignore[index]
        tensor.data.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_borrowed_tensors_are_in_no_state_and_become_parameters_again() -> None:
    twin = share(net(), own=["3.bias"], borrow_as_buffers=True)
    assert borrowed(twin[0]) == ("weight", "bias")  # type: ignore[index]
    assert borrowed(nn.Linear(1, 1)) == ()
    assert sorted(twin.state_dict()) == ["1.num_batches_tracked", "1.running_mean", "1.running_var", "3.bias"]
    assert [name for name, _ in all_parameters(twin)] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.bias",
        "3.weight",
    ]
    plain = unshare(copy.deepcopy(twin))
    assert sorted(plain.state_dict()) == sorted(net().state_dict())
    assert borrowed(plain[0]) == ()  # type: ignore[index]


def test_tied_parameters_stay_tied() -> None:
    model = Tied()
    twin = share(model, own=(), borrow_as_buffers=True)
    assert len(list(all_parameters(twin))) == 1
    plain, own = unshare(copy.deepcopy(twin)), share(model, own=["one.weight"])
    for copied in (plain, own):
        assert copied.get_parameter("one.weight") is copied.get_parameter("other.weight")
    assert own.get_parameter("one.weight").data_ptr() != model.one.weight.data_ptr()


def test_copies_can_use_the_same_parameters() -> None:
    one, other = share(net(), own=["1.weight"]), share(net(), own=["1.weight"])
    tie(one, to=other)
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        assert mine is its
    for name, buffer in one.named_buffers():
        assert buffer is not other.get_buffer(name)


def test_parameters_made_in_inference_mode_can_be_trained_around() -> None:
    with torch.inference_mode():
        model = net()
    twin = share(model, own=["0.weight"], borrow_as_buffers=True)
    twin(torch.rand(5, 3)).sum().backward()
    gradient = twin.get_parameter("0.weight").grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_a_model_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("a handle cannot be copied\nmore")

    with pytest.raises(
        UnsuitableModel, match=r"Stubborn cannot be copied \(a handle cannot be copied\); pass the plain"
    ):
        share(Stubborn(1, 1), own=())


def test_tensors_that_share_memory_are_converted_once() -> None:
    weight, calls = torch.ones(4), []

    def double(tensor: Tensor) -> Tensor:
        calls.append(tensor)
        return tensor.double()

    once = once_per_tensor(double)
    assert once(weight).data_ptr() == once(weight.detach()).data_ptr()
    assert once(weight[:2]).data_ptr() != once(weight).data_ptr()
    assert len(calls) == 2
    assert once(torch.empty(0)).dtype == torch.float64


def test_norm_layers_compute_in_float32_and_are_given_back_as_they_were() -> None:
    given = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4)).bfloat16().eval()
    model = copy.deepcopy(given)
    raise_norm_precision(model)
    assert [module[0].dtype for module in map(list, (m.parameters() for m in model))] == [
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]
    assert model(torch.rand(2, 4).bfloat16()).dtype == torch.bfloat16
    assert {tensor.dtype for tensor in match_norm_precision(model, given).parameters()} == {torch.bfloat16}
