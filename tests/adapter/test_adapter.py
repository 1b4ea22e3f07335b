import copy
import gc
import types
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.adapter import Adapter
from resitta.checkpoint.tree import same
from resitta.errors import (
    BadImages,
    BadOutput,
    BadSetting,
    BadState,
    NonFiniteImages,
    NotExportable,
    UnsuitableModel,
)
from resitta.norm.bn_layers import AdaptiveBN
from resitta.training.optimizer import Adam

METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]


def images(n: int, seed: int = 0, size: int = 10) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


# --- making one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_sibling_is_what_the_adapter_was_at_first(method: str, model: nn.Module) -> None:
    adapter = resitta.adapt(model, method, seed=3, guard=True, label_prior="temporal")
    adapter.listen(print)
    fresh = adapter.state_dict()
    adapter(images(70))
    sibling = adapter.sibling()
    assert same(sibling.state_dict(), fresh)
    assert sibling.source is adapter.source
    assert len(sibling.callbacks) == 1, "a guard of its own, and no listener"
    assert sibling.guard is not adapter.guard
    learned = adapter.state_dict()
    sibling(images(70, seed=1))
    assert same(adapter.state_dict(), learned)


@pytest.mark.parametrize("method", ["resitta", "rotta", "note"])
def test_batchnorm_without_running_statistics_is_refused(method: str) -> None:
    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    with pytest.raises(UnsuitableModel, match="layer '1' has no running statistics.*; use method='bn', .*'tent'"):
        resitta.adapt(bare, method)
    assert resitta.adapt(bare, "tent")


def test_models_without_batchnorm_work_with_source_and_lame() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(300, 4))
    for method in ("source", "lame"):
        assert resitta.adapt(plain, method)(images(3)).shape == (3, 4)


# --- calling it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: [1, 2], "must be a batch, found a list that holds int"),
        (lambda: images(2)[:, 0, 0], r"found shape \(2, 10\), which may be rows of features"),
        (lambda: images(2).long(), "found torch.int64"),
        (lambda: images(2)[:0], "the batch is empty"),
        (lambda: images(2) * 255, "divide by 255"),
        (lambda: images(2) * 4 - 2, r"pass normalized=\(mean, std\)"),
        (lambda: images(2) * 1.1, r"images.clip\(0, 1\)"),
        (lambda: images(2)[:, :2], r"the model refused images of shape \(2, 2, 10, 10\).*2 channels"),
        (lambda: images(2).to("meta"), "images are on meta, the model is on cpu; call images.to"),
        (lambda: images(2, size=12), r"holds \(3, 10, 10\) images, found \(3, 12, 12\); resize them, or reset"),
    ],
)
def test_bad_images_are_refused_and_change_nothing(model: nn.Module, batch: Callable[[], Any], message: str) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(70))
    before = adapter.state_dict()
    with pytest.raises(BadImages, match=message):
        adapter(batch())
    assert same(before, adapter.state_dict())
    twin = resitta.adapt(model, "resitta")
    twin(images(70))
    assert torch.equal(adapter(images(70, seed=1)), twin(images(70, seed=1)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_images_are_refused_by_index(model: nn.Module, value: float) -> None:
    batch = images(8)
    batch[3, 0, 0, 0] = value
    with pytest.raises(NonFiniteImages, match=r"1 of 8 images \(index 3\) hold NaN or Inf.*non_finite='skip'"):
        resitta.adapt(model, "resitta")(batch)


@pytest.mark.parametrize("method", METHODS)
def test_skipped_images_are_predicted_and_never_learned_from(model: nn.Module, method: str) -> None:
    good = images(80)
    batch = torch.cat([good[:40], torch.full((2, 3, 10, 10), float("nan")), good[40:]])
    adapter, clean = resitta.adapt(model, method, non_finite="skip"), resitta.adapt(model, method)
    logits = adapter(batch)
    expected = clean(good)
    assert logits.isfinite().all()
    assert torch.equal(torch.cat([logits[:40], logits[42:]]), expected)
    assert same(adapter.state_dict(), clean.state_dict())
    before = adapter.state_dict()
    assert adapter(torch.full((2, 3, 10, 10), float("inf"))).isfinite().all()
    assert same(before, adapter.state_dict())


def test_rounding_outside_the_unit_interval_is_taken(model: nn.Module) -> None:
    assert resitta.adapt(model, "resitta")(images(2) * 1.0005).shape == (2, 5)


@pytest.mark.parametrize("method", METHODS)
def test_channels_last_gives_the_same(model: nn.Module, method: str) -> None:
    plain, last = resitta.adapt(model, method), resitta.adapt(model, method)
    for seed in range(3):
        batch = images(50, seed)
        torch.testing.assert_close(
            last(batch.to(memory_format=torch.channels_last)), plain(batch), atol=1e-4, rtol=1e-4
        )


def test_images_of_another_precision_are_converted(model: nn.Module) -> None:
    batch = images(3)
    assert torch.equal(resitta.adapt(model, "resitta")(batch.double()), resitta.adapt(model, "resitta")(batch))


# --- models of all kinds ----------------------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, net: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.wrap = net, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda y: {"logits": y, "aux": 0}, "logits"),
        (lambda y: types.SimpleNamespace(logits=y), "logits"),
        (lambda y: (None, y), 1),
        (lambda y: {"deep": [y]}, lambda answer: answer["deep"][0]),
    ],
)
def test_output_selects_the_logits(model: nn.Module, wrap: Callable[[Tensor], Any], output: Any) -> None:
    adapter = resitta.adapt(Returns(model, wrap), "resitta", output=output)
    assert torch.equal(adapter(images(70)), resitta.adapt(model, "resitta")(images(70)))


@pytest.mark.parametrize(
    ("wrap", "output", "message"),
    [
        (
            lambda y: {"logits": y},
            None,
            r"returned a dict with keys \['logits'\], not logits; select them with output=",
        ),
        (lambda y: {"logits": y}, "logit", "output='logit' selects nothing from a dict"),
        (lambda y: y[:, 0], None, r"float logits of shape \(4, classes\), with at least two classes, found \(4,\)"),
        (lambda y: y[:1], None, r"found \(1, 5\)"),
        (lambda y: y.argmax(1, keepdim=True).expand(-1, 5), None, "of torch.int64"),
    ],
)
def test_other_outputs_are_refused(model: nn.Module, wrap: Callable[[Tensor], Any], output: Any, message: str) -> None:
    adapter = resitta.adapt(Returns(model, wrap), "resitta", output=output)
    with pytest.raises(BadOutput, match=message):
        adapter(images(4))
    assert adapter.stats.samples == 0


def test_normalized_inputs_give_what_a_model_that_normalises_inside_gives(model: nn.Module) -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    m, s = torch.tensor(mean).view(1, 3, 1, 1), torch.tensor(std).view(1, 3, 1, 1)

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor) -> Any:
            return self.net((x - m) / s)

    outside, inside = resitta.adapt(model, "resitta", normalized=(mean, std)), resitta.adapt(Inside(), "resitta")
    for seed in range(4):
        batch = images(50, seed)
        torch.testing.assert_close(outside((batch - m) / s), inside(batch), atol=1e-4, rtol=1e-4)
    with pytest.raises(BadImages, match="check that normalized="):
        outside(batch * 9)


def test_dropout_is_never_active() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).train()
    adapter = resitta.adapt(net, "source").train()
    assert torch.equal(adapter(images(5)), net.eval()(images(5)))


def test_the_callers_storage_is_shared_and_survives_moves(model: nn.Module) -> None:
    before = copy.deepcopy(model.state_dict())
    adapter = resitta.adapt(model, "resitta")
    shared = model[0].weight.data_ptr()  # type: ignore[index]
    own = adapter.learner
    convolutions = [m for m in own.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 3]
    assert len(convolutions) == 2, "teacher and student"
    assert {m.weight.data_ptr() for m in convolutions} == {shared}
    adapter.double()
    assert len({m.weight.data_ptr() for m in convolutions}) == 1, "still shared with each other"
    assert adapter(images(70).double()).dtype == torch.float64
    assert same(before, model.state_dict())
    assert next(model.parameters()).dtype == torch.float32


def test_extra_parameter_memory_is_a_few_per_cent() -> None:
    from resitta.models import WideResNet

    net = WideResNet(depth=16, width=4)
    adapter = resitta.adapt(net, "resitta")
    seen: set[int] = {p.data_ptr() for p in net.parameters()}
    extra = sum(t.numel() for t in (*adapter.parameters(), *adapter.buffers()) if t.data_ptr() not in seen)
    assert extra < 0.05 * sum(p.numel() for p in net.parameters())


def test_a_model_made_in_inference_mode_adapts() -> None:
    with torch.inference_mode():
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
        adapter = resitta.adapt(net.eval(), "resitta")
        adapter(images(130))
    assert adapter.stats.updates == 2


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_state_survives_a_file_without_pickled_code(model: nn.Module, method: str, tmp_path: Any) -> None:
    adapter = resitta.adapt(model, method)
    adapter(images(150))
    torch.save(adapter.state_dict(), tmp_path / "state.pt")
    other = resitta.adapt(model, method, seed=9)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(adapter(images(150, seed=2)), other(images(150, seed=2)))


def test_a_state_dict_is_a_snapshot(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(100))
    snapshot = adapter.state_dict()
    first = adapter(images(100, seed=1))
    adapter.load_state_dict(snapshot)
    assert torch.equal(adapter(images(100, seed=1)), first)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop(next(iter(state))),
        lambda state: state.update(extra=torch.zeros(1)),
        lambda state: state["_extra_state"].update(method="tent"),
        lambda state: state["_extra_state"].pop("generator"),
        lambda state: state["learner.bank._extra_state"].update(births=torch.zeros(3)),
        lambda state: state.update({"learner.networks.teacher.model.1.source_mean": torch.zeros(99)}),
    ],
)
def test_a_state_that_does_not_fit_leaves_the_adapter_as_it_was(model: nn.Module, spoil: Callable[[Any], Any]) -> None:
    adapter, other = resitta.adapt(model, "resitta"), resitta.adapt(model, "resitta")
    adapter(images(100))
    other(images(100, seed=5))
    before, state = adapter.state_dict(), other.state_dict()
    spoil(state)
    with pytest.raises(BadState, match="the state does not fit this resitta adapter"):
        adapter.load_state_dict(state)
    assert same(before, adapter.state_dict())


def test_another_architecture_or_method_is_refused(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    with pytest.raises(BadState):
        adapter.load_state_dict(resitta.adapt(model, "rotta").state_dict())


def test_an_adapter_can_be_part_of_a_larger_module(model: nn.Module) -> None:
    outer, twin = (nn.ModuleDict({"a": resitta.adapt(model, "resitta", seed=seed)}) for seed in (0, 4))
    outer["a"](images(100))
    twin.load_state_dict(outer.state_dict())
    assert torch.equal(outer["a"](images(100, seed=1)), twin["a"](images(100, seed=1)))


def test_an_adapter_can_be_copied(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(100))
    twin = copy.deepcopy(adapter)
    first = adapter(images(100, seed=1))
    assert torch.equal(twin(images(100, seed=1)), first)


def test_an_adapter_frees_its_memory(model: nn.Module) -> None:
    def tensors() -> int:
        gc.collect()
        return sum(type(o) in (Tensor, nn.Parameter) for o in gc.get_objects())

    before = tensors()
    adapter = resitta.adapt(model, "resitta")
    adapter(images(100))
    del adapter
    assert tensors() <= before


# --- stats and export -------------------------------------------------------------------------------------------------


def test_stats_tell_the_truth(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    logits = torch.cat([adapter(images(n, seed=n)) for n in (50, 60, 40)])
    stats = adapter.stats
    p = logits.softmax(1)
    assert (stats.samples, stats.updates) == (150, 2)
    assert stats.mean_entropy == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=1e-4)
    assert stats.bank is not None
    assert (stats.bank.occupancy, stats.bank.capacity, sum(stats.bank.per_class)) == (64, 64, 64)
    assert list(stats.drift) == ["1", "4"]
    teacher = adapter.learner.get_submodule("networks.teacher.model.1.layer")
    source = model.get_submodule("1")
    gap = (teacher.running_mean - source.running_mean).square().sum()  # type: ignore[operator]
    gap = gap + (teacher.running_var.sqrt() - source.running_var.sqrt()).square().sum()  # type: ignore[operator]
    assert stats.drift["1"] == pytest.approx(float(gap.sqrt()), rel=1e-5)
    assert stats.mean_drift == pytest.approx(sum(stats.drift.values()) / 2)
    with pytest.raises(AttributeError):
        stats.samples = 3  # type: ignore[misc]


@pytest.mark.parametrize("method", ["source", "rotta", "resitta"])
def test_export_is_an_ordinary_checkpoint(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model, method)
    adapter(images(200))
    plain = adapter.export()
    batch = images(30, seed=7)
    with adapter.paused():
        expected = adapter(batch)
    torch.testing.assert_close(plain(batch), expected, atol=1e-5, rtol=0)
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(plain.state_dict(), strict=True)
    torch.testing.assert_close(fresh(batch), expected, atol=1e-5, rtol=0)
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in model.named_parameters()]
    program = torch.export.export(plain, (batch,))
    torch.testing.assert_close(program.module()(batch), expected, atol=1e-5, rtol=0)
    assert plain[0].weight.data_ptr() != model[0].weight.data_ptr(), "an export shares nothing"  # type: ignore[index]


@pytest.mark.parametrize("method", ["bn", "pl", "tent", "lame", "cotta", "note"])
def test_what_batchnorm_cannot_express_is_not_exported(model: nn.Module, method: str) -> None:
    with pytest.raises(NotExportable, match=f"{method} .* keep calling the adapter"):
        resitta.adapt(model, method).export()


def test_nested_pauses(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    with adapter.paused():
        with adapter.paused():
            adapter(images(3))
        adapter(images(3))
    assert adapter.stats.samples == 0
    adapter(images(3))
    assert adapter.stats.samples == 3


def test_repr_says_what_adapts(model: nn.Module) -> None:
    assert "80 own parameters beside the model's" in repr(resitta.adapt(model, "resitta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_cuda_agrees_with_the_cpu(model: nn.Module, method: str) -> None:
    cpu, cuda = resitta.adapt(model, method), resitta.adapt(model, method).to("cuda")
    cpu(images(40)), cuda(images(40).cuda())
    resitta.check_method(method, device="cuda")


# --- what real models do ----------------------------------------------------------------------------------------------


class Around(nn.Module):
    """The small network inside a forward pass of one's own."""

    def __init__(self, net: nn.Module, forward: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.way = net, forward

    def forward(self, x: Tensor) -> Any:
        return self.way(self.net, x)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_normalises_in_place_changes_nobodys_images(model: nn.Module, method: str) -> None:
    inside = Around(model, lambda net, x: net(x.sub_(0.5).div_(0.25)))
    outside = Around(model, lambda net, x: net((x - 0.5) / 0.25))
    one, other = resitta.adapt(inside, method), resitta.adapt(outside, method)
    for seed in range(3):
        batch = images(60, seed)
        before = batch.clone()
        assert torch.equal(one(batch), other(batch))
        assert torch.equal(batch, before)


def test_a_callers_autocast_changes_nothing(model: nn.Module) -> None:
    images = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain, inside = resitta.adapt(model, "resitta"), resitta.adapt(model, "resitta")
    for _ in range(2):
        expected = plain(images)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(inside(images), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite(model: nn.Module, method: str, dtype: torch.dtype) -> None:
    if method == "cotta" and dtype == torch.float16:
        with pytest.raises(UnsuitableModel, match="float16 parameters are too coarse to train"):
            resitta.adapt(model.to(dtype), method)
        return
    adapter = resitta.adapt(model.to(dtype), method)
    for seed in range(4):
        logits = adapter(images(64, seed).to(dtype))
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    if method in ("source", "rotta", "resitta"):
        assert {p.dtype for p in adapter.export().parameters()} == {dtype}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_an_adapter_may_be_converted_in_the_middle_of_a_stream(
    model: nn.Module, method: str, dtype: torch.dtype
) -> None:
    adapter, unchanged = resitta.adapt(model, method), resitta.adapt(model, method)
    for seed in range(2):
        assert torch.equal(adapter(images(64, seed)), unchanged(images(64, seed)))
    if method == "cotta" and dtype == torch.float16:
        with pytest.raises(UnsuitableModel, match="float16 parameters are too coarse to train; convert the adapter"):
            adapter.to(dtype)
        assert torch.equal(adapter(images(64, 2)), unchanged(images(64, 2)))
        return
    before = adapted_state(adapter)
    adapter.to(dtype)
    if dtype != torch.float64:
        torch.testing.assert_close(adapted_state(adapter), before, rtol=0, atol=0)  # not rounded
    draws = method == "cotta"  # other random numbers in another precision
    close = 1e-4 if dtype == torch.float64 and not draws else 0.1
    for seed in range(2, 6):
        logits, expected = adapter(images(64, seed).to(dtype)), unchanged(images(64, seed))
        assert logits.dtype == dtype
        if method != "lame":  # coarse features have other nearest neighbours
            torch.testing.assert_close(logits.float(), expected, rtol=close, atol=close)


def adapted_state(adapter: Adapter) -> list[Tensor]:
    """The BatchNorm layers that learn, and the moments of Adam for their parameters."""
    layers = [module for module in adapter.modules() if isinstance(module, AdaptiveBN)]
    found = [tensor for layer in layers for tensor in (*layer.parameters(), *layer.buffers())]
    trained = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for module in adapter.modules():
        if isinstance(module, Adam) and module.adam is not None:
            states = [state for parameter, state in module.adam.state.items() if id(parameter) in trained]
            found += [tensor for state in states for tensor in state.values()]
    return [tensor.detach().clone() for tensor in found]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["pl", "tent", "note", "rotta", "resitta"])
def test_steps_after_a_conversion_are_as_small_as_before(model: nn.Module, method: str, dtype: torch.dtype) -> None:
    adapter = resitta.adapt(model, method)
    lr = cast(Any, adapter.method).lr
    for seed in range(20):
        adapter(images(64, seed))
    adapter.to(dtype)
    before = [parameter.detach().float().clone() for parameter in adapter.parameters()]
    adapter(images(64, 20).to(dtype))
    moved = [(p.detach().float() - b).abs().max().item() for p, b in zip(adapter.parameters(), before, strict=True)]
    assert 0 < max(moved) < 3 * lr


def test_the_normalisation_is_not_rounded_by_a_conversion(model: nn.Module) -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    adapter = resitta.adapt(model, "resitta", normalized=(mean, std))
    white = (1 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1) * torch.ones(2, 3, 10, 10)
    expected = adapter(white)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        adapter.to(dtype)
    with adapter.paused():
        torch.testing.assert_close(adapter(white), expected, rtol=0.05, atol=0.05)


def test_batchnorm_layers_that_share_a_weight_are_converted(model: nn.Module) -> None:
    model.get_submodule("4").weight = nn.Parameter(torch.ones(12))
    layers = list(model.children())
    tied = nn.Sequential(*layers[:6], nn.BatchNorm2d(12), *layers[6:]).eval()
    tied.get_submodule("6").weight = tied.get_submodule("4").weight
    converted = resitta.adapt(tied, "tent").to(torch.bfloat16)
    for adapter in (converted, resitta.adapt(copy.deepcopy(tied).bfloat16(), "tent")):
        for seed in range(2):
            assert adapter(images(16, seed).bfloat16()).isfinite().all()


def test_a_default_precision_is_not_taken_for_a_conversion(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "cotta")
    torch.set_default_dtype(torch.float16)
    try:
        adapter.to("cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert adapter(images(4)).dtype == torch.float32


def test_a_conversion_takes_what_waits_to_be_learned_from_along(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", background=True)
    assert adapter.background is not None
    adapter(images(64))
    with adapter.background.thread:  # nothing is learned meanwhile
        adapter(images(64, 1))
        adapter.to(torch.bfloat16)
        found: list[torch.dtype] = []
        adapter.background.queue.convert(lambda tensor: found.append(tensor.dtype) or tensor)  # type: ignore[func-returns-value]
        assert found == [torch.bfloat16] * 2
    adapter.sync()
    assert adapter(images(64, 2).bfloat16()).dtype == torch.bfloat16
    adapter.sync()
    assert (adapter.samples, adapter.stats.updates) == (192, 3)


def test_all_that_watches_a_learner_bears_a_conversion(model: nn.Module) -> None:
    settings: list[dict[str, Any]] = [{"background": True}, {"guard": True, "anchor": 0.1, "reset_on_shift": 2.0}]
    for chosen in settings:
        adapter = resitta.adapt(model, "resitta", **chosen)
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            adapter.to(dtype)
            for seed in range(3):
                assert adapter(images(64, seed).to(dtype)).dtype == dtype
                if adapter.background is not None:
                    adapter.sync()
        assert adapter.stats.updates == 9


@pytest.mark.parametrize("method", METHODS)
def test_fast_arithmetic_bears_a_conversion(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model, method, precision="bf16")
    half = torch.bfloat16 if method == "cotta" else torch.float16
    for dtype in (torch.float64, half, torch.float32):
        adapter.to(dtype)
        for seed in range(2):
            assert adapter(images(64, seed).to(dtype)).isfinite().all()


@pytest.mark.parametrize("method", ["source", "rotta", "resitta"])
def test_an_export_has_the_precision_the_adapter_was_converted_to(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model.bfloat16(), method)
    adapter(images(64).bfloat16())
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        exported = adapter.to(dtype).export()
        assert {p.dtype for p in (*exported.parameters(), *exported.buffers()) if p.is_floating_point()} == {dtype}
        assert exported(images(4).to(dtype)).dtype == dtype


@pytest.mark.parametrize("method", METHODS)
def test_a_prediction_that_is_not_finite_is_not_learned_from(model: nn.Module, method: str) -> None:
    def spoil(net: nn.Module, x: Tensor) -> Tensor:
        logits: Tensor = net(x)
        return torch.where((x.mean((1, 2, 3)) > 0.95)[:, None], torch.nan, logits)

    adapter = resitta.adapt(Around(model, spoil), method)
    batch = images(80)
    batch[7] = 1.0
    adapter(batch)
    assert adapter(images(80, seed=1)).isfinite().all()
    assert adapter.stats.mean_entropy == adapter.stats.mean_entropy, "not NaN"


def test_a_model_that_reads_its_layers_attributes_works(model: nn.Module) -> None:
    def read(net: nn.Module, x: Tensor) -> Any:
        layer: Any = net.get_submodule("1")
        return net(x) + 0 * layer.num_features * layer.weight.sum()

    reads = Around(model, read)
    assert torch.equal(resitta.adapt(reads, "resitta")(images(70)), resitta.adapt(model, "resitta")(images(70)))


@pytest.mark.parametrize("method", ["tent", "resitta"])
def test_a_model_without_gradients_is_refused_in_words(model: nn.Module, method: str) -> None:
    frozen = Around(model, torch.no_grad()(lambda net, x: net(x)))
    with pytest.raises(UnsuitableModel, match="forward pass disables gradients; use method='bn'"):
        resitta.adapt(frozen, method)(images(64))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, AssertionError])
def test_what_a_model_raises_comes_out_as_it_is(model: nn.Module, error: type[Exception]) -> None:
    def refuse(net: nn.Module, x: Tensor) -> Tensor:
        raise error("only squares")

    with pytest.raises(error, match="^only squares$") as caught:
        resitta.adapt(Around(model, refuse), "resitta")(images(2))
    assert caught.type is error
    assert caught.traceback[-1].name == "refuse"


def test_a_misfit_inside_a_model_that_has_taken_such_images_is_not_the_images_fault(model: nn.Module) -> None:
    broken = False

    def breaks(net: nn.Module, x: Tensor) -> Any:
        return net(x[:, :2] if broken else x)

    adapter = resitta.adapt(Around(model, breaks), "resitta")
    adapter(images(2))
    broken = True
    with pytest.raises(RuntimeError, match=r"expected input\[2, 2, 10, 10\] to have 3 channels") as caught:
        adapter(images(2))
    assert caught.type is RuntimeError


def test_reset_inside_a_pause_stays_paused(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    with adapter.paused():
        adapter.reset()
        adapter(images(4))
    assert adapter.stats.samples == 0


def test_assigning_a_state_is_refused(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "tent")
    with pytest.raises(BadState, match="assign=True would take the tensors away"):
        adapter.load_state_dict(adapter.state_dict(), assign=True)


@pytest.mark.parametrize("method", ["bn", "cotta", "resitta"])
def test_bad_frames_change_no_good_ones_prediction_even_when_paused(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model, method, non_finite="skip")
    good = images(20)
    with adapter.paused():
        expected = adapter(good)
        mixed = adapter(torch.cat([good, torch.full((3, 3, 10, 10), torch.nan)]))
    assert torch.equal(mixed[:20], expected)


def test_notes_statistics_drift_too(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "note")
    adapter(images(130))
    assert adapter.stats.mean_drift > 0


@pytest.mark.parametrize("normalized", [0.5, (0.5,), ("a", "b"), ((0.5,), (0.0,)), ((0.5, 0.5), (1.0,))])
def test_a_wrong_normalisation_is_refused(model: nn.Module, normalized: Any) -> None:
    with pytest.raises(BadSetting, match="normalized"):
        resitta.adapt(model, "resitta", normalized=normalized)


def test_normalized_images_of_low_precision_are_taken(model: nn.Module) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    black = (
        (torch.zeros(2, 3, 10, 10) - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    ).bfloat16()
    assert resitta.adapt(model, "resitta", normalized=(mean, std))(black).shape == (2, 5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_scripted_and_lazy_models_are_refused_in_words(model: nn.Module) -> None:
    with pytest.raises(UnsuitableModel, match="compiled to TorchScript"):
        resitta.adapt(torch.jit.script(model), "source")
    with pytest.raises(UnsuitableModel, match="uninitialised lazy layers"):
        resitta.adapt(nn.Sequential(nn.LazyBatchNorm2d(affine=False)), "resitta")


def test_layers_hidden_in_a_plain_list_are_refused_in_words(model: nn.Module) -> None:
    hidden = Around(model, lambda net, x: net(x))
    vars(hidden)["steps"] = [model.get_submodule("1")]
    with pytest.raises(UnsuitableModel, match=r"Around keeps BatchNorm layers in the plain list 'steps'.*ModuleList"):
        resitta.adapt(hidden, "resitta")


def test_a_default_device_elsewhere_does_not_matter(model: nn.Module) -> None:
    for method in ("cotta", "note", "rotta", "resitta"):
        adapter = (
            resitta.adapt(model, method, capacity=8) if method != "cotta" else resitta.adapt(model, method, views=1)
        )
        batch = images(70)
        adapter(batch)  # torch's own Adam makes its state where the default is
        with torch.device("meta"):
            assert adapter(batch).device.type == "cpu"


def test_export_keeps_what_the_caller_had_frozen(model: nn.Module) -> None:
    next(model.parameters()).requires_grad_(False)
    flags = [p.requires_grad for p in resitta.adapt(model, "resitta").export().parameters()]
    assert flags == [False] + [True] * (len(flags) - 1)


class FrozenBatchNorm2d(nn.Module):
    """As torchvision's: all that a BatchNorm layer has, as buffers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.3), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((features,), value))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (tensor.view(1, -1, 1, 1) for tensor in self.buffers())
        return (x - mean) * (var + 1e-5).rsqrt() * weight + bias


def network(norm_layer: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm_layer(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("method", ["resitta", "tent", "bn"])
def test_frozen_batchnorm_is_refused_with_the_way_to_thaw_it(method: str) -> None:
    frozen = network(FrozenBatchNorm2d)
    with pytest.raises(UnsuitableModel, match=r"Sequential are FrozenBatchNorm2d.*norm_layer=torch.nn.BatchNorm2d and"):
        resitta.adapt(frozen, method)
    thawed = network(nn.BatchNorm2d).eval()
    thawed.load_state_dict(frozen.state_dict(), strict=False)
    images = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(resitta.adapt(thawed, method)(images).shape, frozen(images).shape)
    torch.testing.assert_close(thawed(images), frozen(images))


def test_frozen_batchnorm_does_where_none_is_needed() -> None:
    assert resitta.adapt(network(FrozenBatchNorm2d), "source")(torch.rand(2, 3, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize("method", ["resitta", "rotta", "note"])
def test_learning_from_predictions_made_elsewhere_is_learning_from_calls(model: nn.Module, method: str) -> None:
    called, told = resitta.adapt(model, method), resitta.adapt(model, method)
    for batch in torch.split(images(200), 30):
        with told.paused():
            logits = told(batch)
        told.learn_from(batch, logits)
        assert torch.equal(called(batch), logits)
    assert same(called.state_dict(), told.state_dict())
    assert told.stats == called.stats


@pytest.mark.parametrize("method", ["source", "bn", "tent", "pl", "cotta", "lame"])
def test_methods_that_need_their_own_predictions_say_so(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model, method)
    with pytest.raises(BadSetting, match=f"{method} learns only from what it predicts itself; call the adapter"):
        adapter.learn_from(images(8), torch.zeros(8, 5))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[0.0, 1.0]], "found list"),
        (torch.zeros(8), r"found torch.float32 of shape \(8,\)"),
        (torch.zeros(8, 5, dtype=torch.int64), "found torch.int64"),
        (torch.zeros(7, 5), "must be 8×classes for these images, found 7×5"),
        (torch.zeros(8, 5, device="meta"), "logits are on meta, images on cpu"),
    ],
)
def test_logits_that_do_not_belong_to_the_images_are_refused(model: nn.Module, logits: Any, message: str) -> None:
    adapter = resitta.adapt(model, "resitta")
    before = adapter.state_dict()
    with pytest.raises(BadOutput, match=message):
        adapter.learn_from(images(8), logits)
    assert same(before, adapter.state_dict())


def test_logits_of_other_classes_are_refused(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(8))
    with pytest.raises(BadOutput, match="must be 8×5 for these images, found 8×7"):
        adapter.learn_from(images(8), torch.zeros(8, 7))


def test_learn_from_checks_images_pauses_and_calls_callbacks(model: nn.Module) -> None:
    seen: list[int] = []

    class Counter(resitta.Callback):
        def after_step(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
            seen.append(len(images))

    adapter = resitta.adapt(model, "resitta", non_finite="skip")
    adapter.add_callback(Counter())
    batch, logits = images(8), torch.randn(8, 5)
    with pytest.raises(BadImages, match="divide by 255"):
        adapter.learn_from(255 * batch, logits)
    with adapter.paused():
        adapter.learn_from(batch, logits)
    assert (seen, adapter.samples) == ([], 0)
    batch[3] = torch.nan
    with torch.inference_mode():
        adapter.learn_from(batch, logits.clone())
    assert (seen, adapter.samples) == ([7], 7)


def test_learn_from_is_all_or_nothing(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(40))
    before = adapter.state_dict()
    monkeypatch.setattr(adapter.learner.networks, "move_teacher", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter.learn_from(images(40), torch.randn(40, 5))
    assert same(before, adapter.state_dict())


def test_a_background_adapter_learns_from_predictions_in_its_thread(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", background=True)
    adapter.learn_from(images(64), torch.randn(64, 5))
    adapter.sync()
    assert (adapter.stats.samples, adapter.stats.updates) == (64, 1)


@pytest.mark.parametrize(("method", "settings", "before"), [("resitta", {"reset_on_shift": 2.0}, 3), ("tide", {}, 1)])
def test_a_change_of_domain_is_an_event(model: nn.Module, method: str, settings: dict[str, Any], before: int) -> None:
    events: list[Any] = []
    adapter = resitta.adapt(model, method, **settings)
    adapter.listen(events.append)
    generator = torch.Generator().manual_seed(0)
    for brightness in (0.7,) * before + (0.1,) * 3:
        adapter(torch.rand(64, 3, 8, 8, generator=generator) * 0.2 + brightness)
    changes = [event for event in events if isinstance(event, resitta.events.DomainChanged)]
    assert [event.changes for event in changes] == [1]
    assert 64 * before < changes[0].samples <= 64 * (before + 2)
    adapter.reset()
    assert adapter.learner.domain_changes == 0
