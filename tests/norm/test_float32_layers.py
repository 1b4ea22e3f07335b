"""Norm layers that learn in half-precision models: the layers by themselves, and through `resitta.adapt`."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.models import VisionTransformer
from resitta.norm.float32_layers import (
    InFloat32,
    compute_as_given,
    compute_in_float32,
    learning_layers,
    sparing_layers,
)
from resitta.runtime.weight_handoff import PublishedNetwork, weights_of
from resitta.training.network import Network

HALVES = [torch.float16, torch.bfloat16]


class OwnRMSNorm(nn.Module):
    """As other libraries write it: without care for mixed precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == self.weight.dtype, "as kernels of a CUDA device demand"
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * self.weight


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layer": (nn.LayerNorm(4), (2, 3, 4)),
    "group": (nn.GroupNorm(2, 4), (2, 4, 3)),
    "rms": (nn.RMSNorm(4), (2, 3, 4)),
    "instance": (nn.InstanceNorm2d(4, affine=True), (2, 4, 3, 3)),
    "tracking": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 3, 3)),
    "own": (OwnRMSNorm(), (2, 3, 4)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_computes_in_float32_and_answers_as_asked(kind: str, dtype: torch.dtype) -> None:
    reference, shape = LAYERS[kind]
    layer = copy.deepcopy(reference).to(dtype).eval()
    compute_in_float32(layer)
    compute_in_float32(layer)  # once is enough
    assert len(layer._forward_pre_hooks) == len(layer._forward_hooks) == 1
    x = torch.randn(shape)
    for given in (dtype, torch.float32):
        expected = copy.deepcopy(reference).eval()(x.to(given).float())
        assert torch.equal(layer(x.to(given)), expected.to(given))


def test_the_hooks_are_the_innermost_and_can_be_removed() -> None:
    layer, seen = nn.LayerNorm(4).bfloat16(), []
    layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    layer.register_forward_hook(lambda _, args, output: seen.append(output.dtype))
    compute_in_float32(layer)
    assert layer(torch.ones(1, 4).bfloat16()).dtype == torch.bfloat16
    assert seen == [torch.bfloat16] * 2
    compute_as_given(layer)
    hooks = [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()]
    assert len(hooks) == 2
    assert not any(isinstance(getattr(hook, "__self__", hook), InFloat32) for hook in hooks)
    assert layer.bfloat16()(torch.ones(1, 4).bfloat16()).dtype == torch.bfloat16


def test_inputs_by_name_are_raised_too() -> None:
    layer = OwnRMSNorm().bfloat16()
    compute_in_float32(layer)
    assert layer(x=torch.ones(1, 4).bfloat16()).dtype == torch.bfloat16


def test_a_copy_has_hooks_of_its_own() -> None:
    layer = nn.LayerNorm(4).bfloat16()
    compute_in_float32(layer)
    twin = copy.deepcopy(layer)
    layer(torch.ones(1, 4).bfloat16())
    before, after = next(iter(twin._forward_pre_hooks.values())), next(iter(twin._forward_hooks.values()))
    assert after.__self__ is before  # type: ignore[attr-defined]
    assert before.given is None
    assert twin(torch.ones(1, 4).half()).dtype == torch.float16


def test_only_layers_with_parameters_of_their_own_learn() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.GroupNorm(2, 4, affine=False))
    network = Network(model)
    assert learning_layers(network.fork().model) == []
    fork = network.fork("affine").model
    assert learning_layers(fork) == [fork.get_submodule("0")]


def test_a_conversion_spares_what_learns() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with torch.no_grad():
        model.get_parameter("1.weight").fill_(1 + 2**-20)
    model._apply(sparing_layers(model, lambda tensor: tensor.bfloat16()))  # type: ignore[no-untyped-call]
    assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert model.get_parameter("1.weight")[0].item() == 1 + 2**-20
    assert model(torch.ones(1, 4).bfloat16()).dtype == torch.bfloat16
    model._apply(sparing_layers(model, lambda tensor: tensor.double()))  # type: ignore[no-untyped-call]
    assert model(torch.ones(1, 4).double()).dtype == torch.float64


def vit() -> nn.Module:
    torch.manual_seed(0)
    model = VisionTransformer(image_size=8, width=12, depth=2, classes=5).eval()
    nn.init.normal_(model.get_parameter("head.weight"))
    return model


def images(seed: int = 0) -> Tensor:
    return torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("method", ["tent", "pl"])
def test_small_steps_are_not_lost(method: str, dtype: torch.dtype) -> None:
    model = vit()
    half, precise = copy.deepcopy(model).to(dtype), copy.deepcopy(model).to(dtype).double()
    chosen = resitta.create(method, lr=1e-5)  # 1 ± 1e-5 is 1 in half precision
    coarse, exact = resitta.adapt(half, chosen), resitta.adapt(precise, chosen)
    for seed in range(5):
        assert coarse(images(seed).to(dtype)).dtype == dtype
        exact(images(seed).to(dtype).double())
    origin = dict(precise.named_parameters())
    moved = [(p - origin[n.partition("model.")[2]]).abs().max() for n, p in coarse.named_parameters()]
    assert 1e-5 < max(moved) < 6e-5
    assert {p.dtype for p in coarse.parameters()} == {torch.float32}
    assert {p.dtype for p in coarse.source.model.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", HALVES)
def test_an_export_has_the_model_s_precision_and_no_hooks(dtype: torch.dtype) -> None:
    model = vit().to(dtype)
    adapter = resitta.adapt(model, "tent", lr=0.05)
    adapter(images().to(dtype))
    plain = adapter.export()
    assert type(plain) is VisionTransformer
    assert {name: value.dtype for name, value in plain.state_dict().items()} == dict.fromkeys(model.state_dict(), dtype)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in plain.modules())
    assert not torch.equal(plain.get_parameter("norm.weight"), model.get_parameter("norm.weight"))
    with adapter.paused():
        torch.testing.assert_close(plain(images().to(dtype)), adapter(images().to(dtype)), rtol=0.1, atol=0.2)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_conversion_loses_nothing_and_can_be_undone(dtype: torch.dtype) -> None:
    adapter = resitta.adapt(vit(), "tent")
    adapter(images())
    learned = {name: p.detach().clone() for name, p in adapter.named_parameters()}
    adapter.to(dtype)
    assert adapter.source.dtype == dtype
    assert all(torch.equal(p, learned[name]) for name, p in adapter.named_parameters())
    assert adapter(images(1).to(dtype)).dtype == dtype
    adapter.to(torch.float64)
    assert {p.dtype for p in adapter.parameters()} == {torch.float64}
    assert adapter(images(2).double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", HALVES)
def test_a_saved_state_continues_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = vit().to(dtype)
    adapter = resitta.adapt(model, "tent")
    adapter(images().to(dtype))
    adapter.save(tmp_path / "state.safetensors")
    other = resitta.load(model, tmp_path / "state.safetensors")
    assert torch.equal(other(images(1).to(dtype)), adapter(images(1).to(dtype)))
    for mine, theirs in zip(adapter.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_published(dtype: torch.dtype) -> None:
    adapter = resitta.adapt(vit().to(dtype), "tent", lr=0.05)
    front = PublishedNetwork.of(adapter)
    assert front is not None
    adapter(images().to(dtype))
    front.weights.put(weights_of(adapter), version=1)
    logits, version = front.predict(images(1).to(dtype))
    assert version == 1
    with adapter.paused():
        torch.testing.assert_close(logits, adapter.export()(images(1).to(dtype)), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", ["tent", "pl", "cotta", "lame", "source"])
def test_autocast_works_on_a_transformer(method: str) -> None:
    chosen = resitta.methods.CoTTA(views=1) if method == "cotta" else method
    adapter, exact = (resitta.adapt(vit(), chosen, precision=p) for p in ("bf16", "exact"))
    logits, expected = adapter(images()), exact(images())
    assert logits.dtype == torch.float32
    if method != "lame":  # coarse features have other nearest neighbours
        torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.1)
    adapter(images(1))


def test_an_exported_transformer_continues_as_the_adapter_does() -> None:
    adapter = resitta.adapt(vit(), "tent", lr=0.05)
    adapter(images())
    with adapter.paused():
        assert torch.equal(adapter.export()(images(1)), adapter(images(1)))
    assert adapter.stats.drift == {}
    assert adapter.stats.mean_drift == 0
