import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import Adapter, adapt
from resitta.method import create
from resitta.methods.tribe import TRIBELearner, mean_of
from resitta.norm.class_balanced_bn import ClassBalancedBN

Stream = Callable[[int], Tensor]
K = 5


def darker(images: Tensor) -> Tensor:
    return images.flip(3) * 0.7


@pytest.fixture
def sure(precise: nn.Module, stream: Stream) -> nn.Module:
    """A network that is certain of many of the images, and of different classes."""
    *body, head = precise.children()
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        features = nn.Sequential(*body)(stream(100))
        head.weight.mul_(15)
        head.bias.copy_(-head.weight @ features.mean(0))
    return precise


class HandBalanced(nn.Module):
    """TRIBE's layer for feature maps, class by class and sample by sample."""

    def __init__(self, layer: nn.BatchNorm2d, eta: float, gamma: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.eta, self.gamma = layer.weight, layer.bias, layer.eps, eta, gamma
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.var = layer.running_mean, layer.running_var
        self.means, self.variances = [self.mean] * K, [self.var] * K
        self.labels: list[int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.labels is not None:
            self.learn(x, self.labels)
        out = (x - self.mean.view(1, -1, 1, 1)) / (self.var.view(1, -1, 1, 1) + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    def learn(self, x: Tensor, labels: list[int]) -> None:
        means = [mean.detach() for mean in self.means]
        variances = [var.detach() for var in self.variances]
        steps, squares, rates = {}, {}, {}
        for k in sorted(set(labels)):
            mine = [i for i, label in enumerate(labels) if label == k]
            n = len(mine)
            rate = self.eta if n <= 1 / self.eta else 1 / n
            deltas = [x[i] - means[k].view(-1, 1, 1) for i in mine]
            steps[k] = rate * sum(delta.mean((1, 2)) for delta in deltas)
            squares[k] = rate * sum((delta**2).mean((1, 2)) for delta in deltas)
            rates[k] = rate * n
        present = len(steps)
        for k, move in steps.items():
            means[k] = means[k] + (1 - self.gamma) * move
            change = squares[k] - rates[k] * variances[k] - move**2
            variances[k] = variances[k] + (1 - self.gamma) * change
        step = sum(steps.values()) / present
        spread = sum(squares[k] - steps[k] ** 2 for k in steps) / present
        rate = sum(rates.values()) / present
        means = [mean + self.gamma * step for mean in means]
        variances = [var + self.gamma * (spread - rate * var) for var in variances]
        self.means, self.variances = means, variances
        self.mean = torch.stack(means).mean(0)
        between = torch.stack([(mean - self.mean) ** 2 for mean in means]).sum(0) / (K - 1)
        self.var = torch.stack(variances).mean(0) + between

    def detach(self) -> None:
        self.mean, self.var = self.mean.detach(), self.var.detach()


class ByHand:
    """TRIBE on three copies of the model."""

    def __init__(self, model: nn.Module, *, eta: float, gamma: float, h0: float, lam: float, lr: float) -> None:
        self.student, self.teacher, self.anchor = (self.net(model, eta, gamma) for _ in range(3))
        for mine, its in zip(self.layers(self.teacher), self.layers(self.student), strict=True):
            mine.weight, mine.bias = its.weight, its.bias
        affine = [parameter for layer in self.layers(self.student) for parameter in (layer.weight, layer.bias)]
        self.adam = torch.optim.Adam(affine, lr=lr)
        self.h0, self.lam = h0, lam
        self.chosen: list[int] = []

    @staticmethod
    def net(model: nn.Module, eta: float, gamma: float) -> nn.Sequential:
        parts = copy.deepcopy(model).children()
        return nn.Sequential(*[HandBalanced(m, eta, gamma) if isinstance(m, nn.BatchNorm2d) else m for m in parts])

    @staticmethod
    def layers(net: nn.Sequential) -> list[HandBalanced]:
        return [module for module in net if isinstance(module, HandBalanced)]

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            prediction: Tensor = self.teacher(images)
        labels = prediction.argmax(1).tolist()
        every = [layer for net in (self.student, self.teacher, self.anchor) for layer in self.layers(net)]
        for layer in every:
            layer.labels = labels
        teacher, student = self.teacher(images), self.student(darker(images))
        with torch.no_grad():
            anchor = self.anchor(images)
        for layer in every:
            layer.labels = None
        self.descend(teacher, student, anchor)
        for layer in every:
            layer.detach()
        return prediction

    def descend(self, teacher: Tensor, student: Tensor, anchor: Tensor) -> None:
        losses, distances = [], []
        for t, s, a in zip(teacher, student, anchor, strict=True):
            p = t.detach().softmax(0)
            if -(p * p.log()).sum() < self.h0 * math.log(K):
                losses.append(-s.log_softmax(0)[t.argmax()])
                distances += [(t[c] - a[c]) ** 2 for c in range(K)]
        self.chosen.append(len(losses))
        self.adam.zero_grad(set_to_none=False)
        if losses:
            loss = sum(losses) / len(losses) + self.lam * sum(distances) / len(distances)
            loss.backward()
        for group in self.adam.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        self.adam.step()


@pytest.mark.parametrize("batch_size", [1, 7, 30])
@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_steps_by_hand(sure: nn.Module, stream: Stream, batch_size: int, gamma: float) -> None:
    settings: dict[str, Any] = {"eta": 0.15, "gamma": gamma, "h0": 0.5, "lam": 0.5, "lr": 0.01}
    adapter, literal = adapt(sure, "tribe", strong_view=darker, **settings), ByHand(sure, **settings)
    count = {1: 30, 7: 140, 30: 500}[batch_size]
    for batch in torch.split(stream(count), batch_size):
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-9, atol=1e-9)
    assert adapter.stats.updates == -(-count // batch_size)
    assert 0 < sum(literal.chosen) < count


def test_the_default_rates_are_those_of_its_authors(sure: nn.Module, stream: Stream) -> None:
    adapter = adapt(sure, "tribe", strong_view=darker)
    literal = ByHand(sure, eta=0.01, gamma=0.0, h0=0.05, lam=0.5, lr=1e-3)
    for batch in torch.split(stream(200), 40):
        torch.testing.assert_close(adapter(batch), literal(batch))


def test_presets_are_those_of_its_authors() -> None:
    names = ("eta", "gamma", "h0", "lam", "lr")
    found = {p: [getattr(create("tribe", preset=p), n) for n in names] for p in ("cifar10", "cifar100", "imagenet")}
    assert found == {
        "cifar10": [0.01, 0, 0.05, 0.5, 1e-3],
        "cifar100": [0.05, 0.1, 0.2, 0.5, 1e-3],
        "imagenet": [0.5, 0.5, 0.4, 0.5, 5e-4],
    }


def test_if_no_sample_is_certain_adam_moves_by_its_momentum(sure: nn.Module, stream: Stream) -> None:
    settings: dict[str, Any] = {"eta": 0.05, "gamma": 0.1, "lam": 0.5, "lr": 0.05}
    adapter, literal = adapt(sure, "tribe", strong_view=darker, h0=0.5, **settings), ByHand(sure, h0=0.5, **settings)
    batches = torch.split(stream(120), 30)
    adapter(batches[0]), literal(batches[0])
    literal.h0 = 1e-9
    object.__setattr__(learner_of(adapter).method, "h0", 1e-9)
    before = copy.deepcopy(dict(adapter.named_parameters()))
    for batch in batches[1:]:
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-9, atol=1e-9)
    assert literal.chosen[0] > 0
    assert literal.chosen[1:] == [0, 0, 0]
    assert all(not torch.equal(before[name], value) for name, value in adapter.named_parameters())
    assert all(value.isfinite().all() for value in adapter.parameters())


def test_teacher_and_student_have_the_same_parameters_and_the_anchor_the_source_s(
    sure: nn.Module, stream: Stream
) -> None:
    adapter = adapt(sure, "tribe", h0=0.5)
    for batch in torch.split(stream(60), 20):
        adapter(batch)
    learner = learner_of(adapter)
    for (_, one), (_, other) in zip(
        *(net.named_parameters() for net in (learner.teacher, learner.student)), strict=True
    ):
        assert one is other
    assert not torch.equal(next(learner.teacher.parameters()), sure.get_parameter("1.weight"))
    assert torch.equal(layers(learner.anchor.model)[0].layer.weight, sure.get_parameter("1.weight"))
    converted = learner_of(copy.deepcopy(adapter).float())
    assert next(converted.teacher.parameters()) is next(converted.student.parameters())


def test_a_saved_adapter_continues_the_same(sure: nn.Module, stream: Stream) -> None:
    adapter, other = adapt(sure, "tribe", h0=0.5), adapt(sure, "tribe", h0=0.5)
    first, second = torch.split(stream(60), 30)
    adapter(first)
    other.load_state_dict(adapter.state_dict())
    torch.testing.assert_close(other(second), adapter(second), rtol=0, atol=0)
    adapter.reset()
    torch.testing.assert_close(adapter(first), adapt(sure, "tribe", h0=0.5)(first), rtol=0, atol=0)


def test_its_export_predicts_the_same(sure: nn.Module, stream: Stream) -> None:
    adapter = adapt(sure, "tribe", h0=0.5, eta=0.2, lr=0.01)
    for batch in torch.split(stream(60), 20):
        adapter(batch)
    with adapter.paused():
        expected = adapter(stream(10))
    assert not torch.allclose(expected, sure(stream(10)), atol=1e-3)
    torch.testing.assert_close(adapter.export()(stream(10)), expected)


def test_24_bits_take_three_quarters_of_the_memory_and_predict_nearly_the_same(
    model: nn.Module, stream: Stream
) -> None:
    adapters = [adapt(model, "tribe", preset="imagenet", statistics_bits=bits, h0=0.5) for bits in (32, 24)]
    for batch in torch.split(stream(320).float(), 32):
        exact, rounded = (adapter(batch) for adapter in adapters)
        torch.testing.assert_close(rounded, exact, rtol=0, atol=1e-3)
    full, small = (learner_of(adapter).statistics_bytes for adapter in adapters)
    assert full == 3 * K * 2 * (8 + 12) * 4
    assert small == full * 3 // 4


def test_a_thousand_classes_by_hand_and_in_24_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preset of ImageNet, two images of each class side by side; every certain sample is learned from."""
    monkeypatch.setattr("tests.methods.test_tribe.K", 1000)
    monkeypatch.setattr(ByHand, "descend", vectorised)
    body, head = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)), nn.Linear(4, 1000)
    model = nn.Sequential(*body, nn.Flatten(), head).double().eval()
    nn.init.normal_(head.weight, std=10)
    settings = {name: getattr(create("tribe", preset="imagenet"), name) for name in ("eta", "gamma", "h0", "lam", "lr")}
    literal = ByHand(model, **settings)
    exact, full, small = (
        adapt(copy.deepcopy(model).to(dtype), "tribe", preset="imagenet", strong_view=darker, statistics_bits=bits)
        for dtype, bits in ((torch.float64, 32), (torch.float32, 32), (torch.float32, 24))
    )
    images = torch.rand(32 * 4, 3, 6, 6).double().pow(3).repeat_interleave(2, dim=0)
    for batch in torch.split((images + 0.05 * torch.randn_like(images)).clamp(0, 1), 64):
        logits = exact(batch)
        torch.testing.assert_close(logits, literal(batch), rtol=1e-9, atol=1e-9)
        for other in (full, small):
            assert torch.equal(other(batch.float()).argmax(1), logits.argmax(1))
    assert sum(literal.chosen) > 128


def vectorised(self: ByHand, teacher: Tensor, student: Tensor, anchor: Tensor) -> None:
    """What `ByHand.descend` does class by class."""
    log_p = teacher.detach().log_softmax(1)
    certain = -(log_p.exp() * log_p).sum(1) < self.h0 * math.log(1000)
    t, s, a = teacher[certain], student[certain], anchor[certain]
    self.chosen.append(len(t))
    loss = nn.functional.cross_entropy(s, t.argmax(1)) + self.lam * (t - a).square().mean()
    self.adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    self.adam.step()


def test_a_single_image_and_a_batch_of_one_class_are_taken(model: nn.Module) -> None:
    adapter = adapt(model, "tribe", preset="imagenet", h0=1.0)
    for images in (torch.rand(1, 3, 10, 10), torch.rand(1, 3, 10, 10).expand(9, -1, -1, -1)):
        assert adapter(images).isfinite().all()
    assert all(value.isfinite().all() for value in adapter.state_dict().values() if isinstance(value, Tensor))


def test_the_mean_of_none_has_no_gradient() -> None:
    values = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(mean_of(values, torch.zeros(3, dtype=torch.bool)), values)
    assert gradient.tolist() == [0, 0, 0]


def learner_of(adapter: Adapter) -> TRIBELearner:
    assert isinstance(adapter.learner, TRIBELearner)
    return adapter.learner


def layers(model: nn.Module) -> list[ClassBalancedBN]:
    return [module for module in model.modules() if isinstance(module, ClassBalancedBN)]
