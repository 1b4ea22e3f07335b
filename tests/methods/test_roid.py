import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.accel.emulated_graphs import emulated_graphs
from tests.methods.roid_by_hand import HandNetwork, HandROID, HandUnMix
from torch import Tensor, nn

from resitta import Adapter, adapt, check_method, load
from resitta.errors import UnsuitableModel
from resitta.method import create
from resitta.methods.roid import ROIDLearner, symmetric_cross_entropy
from resitta.norm.unmix_bn import UnMixBN
from resitta.training.soft_likelihood import sample_weights, soft_likelihood_ratio
from resitta.training.split_gradient import unpacked
from resitta.training.strong_view import StrongView

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="replays need a CUDA device")
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("roid", {}),
    ("roid", {"optimizer": "sgd", "lr": 0.1, "norm": "unmix", "per_sample": True}),
    ("cmf", {"prior_correction": "none"}),
]
Stream = Callable[[int], Tensor]


def darker(images: Tensor) -> Tensor:
    return images * 0.7


def agree(adapter: Callable[[Tensor], Tensor], literal: HandROID, images: Tensor, size: int) -> None:
    for batch in torch.split(images, size):
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"lr": 0.02, "prior_correction": "probability"}, {"lr": 0.02, "prior": "probability"}),
        ({"lr": 0.02, "prior_correction": "none", "alpha": 0.9}, {"lr": 0.02, "prior": "none", "alpha": 0.9}),
        ({"lr": 0.5, "optimizer": "sgd", "batch_size": 200}, {"lr": 0.5, "sgd": True, "batch_size": 200}),
    ],
)
def test_steps_by_hand(precise: nn.Module, stream: Stream, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    adapter = adapt(precise, "roid", strong_view=darker, **ours)
    literal = HandROID(HandNetwork(precise), darker, **theirs)
    agree(adapter, literal, stream(500), 48)  # the last batch has 20
    assert adapter.stats.updates == 11
    assert len(set(literal.kept)) > 3
    assert min(literal.kept) >= 1
    assert isinstance(adapter.learner, ROIDLearner)
    trained = [p.detach() for p in adapter.learner.network.parameters()]
    torch.testing.assert_close(trained, [p.detach() for p in literal.network.theta], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(adapter.learner.mean_prediction, literal.average)


def test_steps_on_unmixed_statistics_by_hand(precise: nn.Module, stream: Stream) -> None:
    """Both passes move the components, the second one by the kept samples alone."""
    settings = {"norm": "unmix", "components": 4, "batch_size": 24, "full_batch": 48, "seed": 5}
    adapter = adapt(precise, "roid", strong_view=darker, lr=0.01, **settings)  # type: ignore[arg-type]
    network = HandUnMix(precise, components=4, rate=1 - 0.9**0.5, seed=5)
    agree(adapter, HandROID(network, darker, lr=0.01, batch_size=24), stream(200), 24)
    layers = [module for module in adapter.modules() if isinstance(module, UnMixBN)]
    for layer, means, variances in zip(layers, network.m, network.v, strict=True):
        torch.testing.assert_close(layer.component_means, torch.stack(means))
        torch.testing.assert_close(layer.component_vars, torch.stack(variances))


@pytest.mark.parametrize(
    "settings", [{"norm": "unmix", "optimizer": "sgd", "prior_correction": "probability"}, {"window": 8}]
)
def test_its_options_conform(settings: dict[str, Any]) -> None:
    check_method(create("roid", **settings))


def test_only_the_kept_samples_have_a_second_pass(precise: nn.Module, stream: Stream) -> None:
    seen: list[Tensor] = []

    def marked(images: Tensor) -> Tensor:
        return 0.5 + torch.arange(len(images)).to(images).view(-1, 1, 1, 1).expand_as(images) / 100

    def record(_: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(inputs[0].clone())

    images = stream(30)
    adapter = adapt(precise, "roid", strong_view=marked, prior_correction="none")
    assert isinstance(adapter.learner, ROIDLearner)
    adapter.learner.network.model.register_forward_pre_hook(record)
    logits = adapter(images)
    _, kept = sample_weights(logits, torch.full((5,), 0.2).double(), 1 / 3)
    assert 0 < kept.sum() < 30
    torch.testing.assert_close(seen[-1], marked(images)[kept])


def test_pausing_predicts_what_the_next_step_would(precise: nn.Module, stream: Stream) -> None:
    for norm in ("batch", "unmix"):
        adapter, images = adapt(precise, "roid", norm=norm), stream(16)
        adapter(images)
        with adapter.paused():
            expected = adapter(images)
        torch.testing.assert_close(adapter(images), expected, rtol=0, atol=1e-12)


def test_presets_are_those_of_its_authors() -> None:
    names = ("cifar10", "cifar100", "imagenet")
    found: list[Any] = [create("roid", preset=name) for name in names]
    assert [(m.optimizer, m.lr) for m in found] == [("adam", 1e-3), ("adam", 1e-3), ("sgd", 2.5e-4)]
    assert {(m.alpha, m.beta, m.prior_correction, m.batch_size) for m in found} == {(0.99, 0.9, "logits", 64)}
    assert found[0].tau == pytest.approx(1 / 3)


def test_its_view_is_the_sharp_one(precise: nn.Module) -> None:
    adapter = adapt(precise, "roid", per_sample=True)
    assert isinstance(adapter.learner, ROIDLearner)
    view = adapter.learner.view
    assert isinstance(view, StrongView)
    assert (view.sharp, view.per_sample) == (True, True)


def test_losses_by_hand() -> None:
    z, other = torch.tensor([[3.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    p, q = 1 / (1 + math.exp(-3)), 1 / (1 + math.exp(1))
    ratio = p * math.log(p / (1 - p) + 1e-5) + (1 - p) * math.log((1 - p) / p + 1e-5)
    assert soft_likelihood_ratio(z).item() == pytest.approx(-ratio)
    both = p * math.log(q) + (1 - p) * math.log(1 - q) + q * math.log(p) + (1 - q) * math.log(1 - p)
    assert symmetric_cross_entropy(z, other).item() == pytest.approx(-both / 2)


def test_a_clipped_probability_has_no_gradient() -> None:
    z = torch.tensor([[20.0, 0.0]], requires_grad=True)
    loss = soft_likelihood_ratio(z)
    assert loss.item() == pytest.approx(-0.99 * math.log(99), rel=1e-4)
    soft_likelihood_ratio(z).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad.abs().max() < 1e-6


def test_gradients_flow_through_both_sides_of_the_consistency() -> None:
    z, other = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(symmetric_cross_entropy, [z, other])


def test_a_network_of_layer_norms(stream: Stream) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 5)).double()
    images = stream(64)
    for method in ("roid", "cmf"):
        adapter = adapt(model, method, classes=5, prior_correction="none", lr=0.01)
        first = adapter(images[:32])
        torch.testing.assert_close(first, model(images[:32]).detach())
        assert [name for name, _ in adapter.learner.named_parameters()] == [
            "network.model.2.weight",
            "network.model.2.bias",
        ]
        assert not torch.equal(adapter(images[:32]), first)
        assert adapter(images[:1]).isfinite().all()


def test_batches_of_one_and_of_equal_images(precise: nn.Module, stream: Stream) -> None:
    for norm in ("batch", "unmix"):
        adapter, images = adapt(precise, "roid", norm=norm), stream(20)
        for batch in (images[:1], images[1:2].expand(8, -1, -1, -1), images):
            assert adapter(batch).isfinite().all()
        assert adapter.stats.updates == 3
        assert all(p.isfinite().all() for p in adapter.parameters())


def test_predictions_that_are_not_finite_leave_the_mean_prediction_alone(precise: nn.Module, stream: Stream) -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.broken = precise, False

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.model(images)
            return logits * torch.nan if images.max() < 0.05 else logits

    adapter, images = adapt(Fragile(), "roid", lr=0.01), stream(16)
    adapter(images)
    adapter(images * 0.01)
    assert adapter(images).isfinite().all()
    assert isinstance(adapter.learner, ROIDLearner)
    assert float(adapter.learner.mean_prediction.sum()) == pytest.approx(1)


def test_images_that_come_alone_are_batches_of_the_window(precise: nn.Module, stream: Stream) -> None:
    images = stream(40)
    adapter = adapt(precise, "roid", strong_view=darker, window=8, lr=0.01)
    literal = HandROID(HandNetwork(precise), darker, lr=0.01)
    for number in range(40):
        window = images[max(0, number - 7) : number + 1]
        with adapter.paused():
            alone = adapter(images[number : number + 1])
        found = adapter(images[number : number + 1])
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
        if number % 8 == 7:
            expected = literal(window)
        else:
            with torch.no_grad():
                expected = literal.corrected(literal.network(window))
        torch.testing.assert_close(found, expected[-1:], rtol=1e-9, atol=1e-9)
    assert adapter.stats.updates == 5
    assert len(adapter(images[:16])) == 16  # a batch is a batch
    assert adapter.stats.updates == 6


def test_a_window_survives_saving(precise: nn.Module, stream: Stream, tmp_path: Path) -> None:
    images = stream(30)
    adapter = adapt(precise, "roid", window=4, lr=0.01)
    for image in torch.split(images[:10], 1):
        adapter(image)
    adapter.save(tmp_path / "state.safetensors")
    other = load(precise, tmp_path / "state.safetensors")
    for image in torch.split(images[10:], 1):
        assert torch.equal(adapter(image), other(image))
    assert other.stats.updates == adapter.stats.updates == 7
    adapter.reset()
    first = adapt(precise, "roid", window=4, lr=0.01)
    assert torch.equal(adapter(images[:1]), first(images[:1]))


def test_unmixed_statistics_need_those_of_the_source() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(12, 5))
    assert adapt(model, "roid", classes=5)(torch.rand(4, 3, 2, 2)).shape == (4, 5)
    with pytest.raises(UnsuitableModel, match="no running statistics"):
        adapt(model, "roid", classes=5, norm="unmix")


def test_the_two_passes_give_the_gradient_of_the_whole_loss(precise: nn.Module, stream: Stream) -> None:
    learner = adapt(precise, "roid", strong_view=darker, batch_size=16).learner
    assert isinstance(learner, ROIDLearner)
    images, parameters = stream(24), learner.optimizer.trained
    logits, weights, kept = learner.first_pass(images)
    rows = kept.nonzero().squeeze(1)
    losses = soft_likelihood_ratio(logits) + symmetric_cross_entropy(logits, _placed(learner, images, rows))
    whole = (weights * losses)[kept].sum() / 16
    expected = torch.autograd.grad(whole, parameters, retain_graph=True)
    vector = learner.second_pass(darker(images), rows, logits.detach(), weights)
    loss, along, others = unpacked(vector, logits, parameters)
    torch.testing.assert_close(loss, whole.detach(), rtol=1e-12, atol=1e-14)
    assert not along[~kept].any()
    own = torch.autograd.grad(logits, parameters, along)
    for one, other, gradient in zip(own, others, expected, strict=True):
        torch.testing.assert_close(one + other, gradient, rtol=1e-12, atol=1e-14)


def _placed(learner: ROIDLearner, images: Tensor, rows: Tensor) -> Tensor:
    """The logits of the views of some rows, in their places; zeros elsewhere."""
    return torch.zeros(len(images), 5).to(images).index_copy(0, rows, learner.network(darker(images)[rows]))


def recordings(adapter: Adapter) -> tuple[int, int]:
    """Of how many shapes of batches, and of how many numbers of kept samples."""
    learner = adapter.learner
    assert isinstance(learner, ROIDLearner)
    return len(learner.passes._recordings), len(learner.replay._recordings)


@pytest.mark.parametrize(("method", "settings"), VARIANTS)
def test_recorded_steps_are_the_same(
    precise: nn.Module, stream: Stream, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    batches = torch.split(stream(360), 12)
    plain = adapt(precise, method, seed=3, **settings)
    expected = [plain(batch) for batch in batches]
    adapter = adapt(precise, method, seed=3, **settings)
    with emulated_graphs(monkeypatch, adapter.learner):
        found = [adapter(batch) for batch in batches]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    pairs, counts = recordings(adapter)
    assert pairs == 1
    assert counts > 1


def test_a_step_that_fails_between_recorded_passes_changes_nothing(
    precise: nn.Module, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def picky(images: Tensor) -> Tensor:
        if broken:
            raise MemoryError
        return darker(images)

    batches, broken = torch.split(stream(144), 12), False
    plain = adapt(precise, "roid", strong_view=darker)
    expected = [plain(batch) for batch in batches]
    adapter = adapt(precise, "roid", strong_view=picky)
    with emulated_graphs(monkeypatch, adapter.learner):
        for batch, answer in zip(batches, expected, strict=True):
            broken = True
            with pytest.raises(MemoryError):
                adapter(batch)
            broken = False
            torch.testing.assert_close(adapter(batch), answer, rtol=1e-10, atol=1e-12)
    assert recordings(adapter)[0] == 1


@needs_cuda
@pytest.mark.parametrize(("method", "settings"), VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recorded_steps_are_the_same_on_a_cuda_device(
    model: nn.Module, stream: Stream, method: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    batches = torch.split(stream(360).to("cuda", dtype), 12)
    runs = []
    for graphs in (True, False):
        adapter = adapt(model.to("cuda", dtype), method, seed=3, cuda_graphs=graphs, **settings)
        runs.append(torch.stack([adapter(batch) for batch in batches]))
        pairs, counts = recordings(adapter)
        assert (pairs == 1 and counts > 1) if graphs else (pairs, counts) == (0, 0)
    close = 1e-6 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(*runs, rtol=close, atol=close)


@needs_cuda
@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_copies_and_snapshots_continue_on_a_cuda_device(precise: nn.Module, stream: Stream, method: str) -> None:
    batches, model = torch.split(stream(360).cuda(), 12), precise.cuda()
    adapter, loaded = adapt(model, method, seed=3), adapt(model, method, seed=3)
    for batch in batches[:15]:
        adapter(batch)
        loaded(batch * 0.5)
    loaded.load_state_dict(adapter.state_dict())
    assert recordings(loaded) == (0, 0)
    twins = adapter, copy.deepcopy(adapter), loaded
    for batch in batches[15:]:
        answers = [twin(batch) for twin in twins]
        torch.testing.assert_close(answers[1:], answers[:1] * 2, rtol=1e-9, atol=1e-9)
    assert all(recordings(twin)[0] == 1 for twin in twins)
