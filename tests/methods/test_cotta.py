import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.method import create
from resitta.methods.cotta import CoTTALearner

Twin = Callable[[nn.Module], nn.Module]
Stream = Callable[[int], Tensor]


def darker(images: Tensor) -> Tensor:
    return images * 0.7


class ByHand:
    """CoTTA on copies of the model, with a view that is free of chance."""

    def __init__(self, model: nn.Module, twin: Twin, *, lr: float, nu: float, threshold: float, restore: int) -> None:
        self.anchor, self.teacher, self.student = twin(model), twin(model), twin(model)
        self.adam = torch.optim.Adam(self.student.parameters(), lr=lr)
        self.nu, self.threshold, self.restore = nu, threshold, restore
        self.averaged = 0

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            unsure = self.anchor(images).softmax(1).max(1).values.mean() < self.threshold
            self.averaged += int(unsure)
            targets: Tensor = self.teacher(darker(images) if unsure else images)
        loss = -(targets.softmax(1) * self.student(images).log_softmax(1)).sum(1).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.copy_((1 - self.nu) * slow + self.nu * fast)
            if self.restore:
                self.student.load_state_dict(self.anchor.state_dict())
        return targets


@pytest.mark.parametrize("restore", [0, 1])
@pytest.mark.parametrize("threshold", [0.42, 1.0])
def test_steps_by_hand(
    precise: nn.Module, stream: Stream, on_batch_statistics: Twin, threshold: float, restore: int
) -> None:
    """The model is unsure of the bright images, which come first here, and then surer."""
    settings: dict[str, Any] = {"lr": 0.01, "nu": 0.1, "threshold": threshold, "restore": restore}
    adapter = adapt(precise, "cotta", strong_view=darker, views=3, **settings)
    literal = ByHand(precise, on_batch_statistics, **settings)
    for batch in torch.split(stream(96).flip(0), 16):
        torch.testing.assert_close(adapter(batch), literal(batch))
    assert adapter.stats.updates == 6
    assert literal.averaged == {0.42: 3, 1.0: 6}[threshold]


def test_the_default_rates_are_those_of_its_authors(
    precise: nn.Module, stream: Stream, on_batch_statistics: Twin
) -> None:
    adapter = adapt(precise, "cotta", strong_view=darker, restore=0.0)
    literal = ByHand(precise, on_batch_statistics, lr=1e-3, nu=0.001, threshold=0.92, restore=0)
    for batch in torch.split(stream(48), 16):
        torch.testing.assert_close(adapter(batch), literal(batch))


def test_presets_are_those_of_its_authors() -> None:
    found = {name: create("cotta", preset=name) for name in ("cifar10", "cifar100", "imagenet")}
    values = {name: (method.threshold, method.restore) for name, method in found.items()}  # type: ignore[attr-defined]
    assert values == {"cifar10": (0.92, 0.01), "cifar100": (0.72, 0.01), "imagenet": (0.1, 0.001)}


def test_targets_are_the_mean_of_the_logits_over_the_views(
    precise: nn.Module, stream: Stream, on_batch_statistics: Twin
) -> None:
    shades = iter([0.5, 0.7, 0.9, 1.0])
    adapter = adapt(precise, "cotta", strong_view=lambda images: images * next(shades), views=4, threshold=1.0)
    twin, images = on_batch_statistics(precise), stream(16)
    expected = torch.stack([twin(images * shade) for shade in (0.5, 0.7, 0.9, 1.0)]).mean(0)
    torch.testing.assert_close(adapter(images), expected)


def test_confidence_at_the_threshold_needs_no_views(
    precise: nn.Module, stream: Stream, on_batch_statistics: Twin
) -> None:
    images, calls = stream(16), []
    confidence = on_batch_statistics(precise)(images).softmax(1).max(1).values.mean().item()

    def counted(images: Tensor) -> Tensor:
        calls.append(len(images))
        return images

    for threshold, expected in [(confidence - 1e-6, 0), (confidence + 1e-6, 32)]:
        calls.clear()
        adapt(precise, "cotta", strong_view=counted, threshold=threshold)(images)
        assert len(calls) == expected


def learned(model: nn.Module, restore: float, images: Tensor, seed: int = 0) -> CoTTALearner:
    adapter = adapt(model, "cotta", strong_view=darker, views=1, lr=0.1, restore=restore, seed=seed)
    adapter(images)
    assert isinstance(adapter.learner, CoTTALearner)
    return adapter.learner


def restored_share(learner: CoTTALearner, model: nn.Module) -> float:
    weights = dict(model.named_parameters())
    pairs = [(weight, weights[name.replace("layer.", "")]) for name, weight in learner.student.all_parameters()]
    return float(torch.cat([(ours == theirs).flatten() for ours, theirs in pairs]).double().mean())


def test_a_share_of_the_student_s_weights_is_restored(precise: nn.Module, stream: Stream) -> None:
    images = stream(16)
    assert restored_share(learned(precise, 0.0, images), precise) < 0.05
    assert 0.35 < restored_share(learned(precise, 0.4, images), precise) < 0.45
    assert restored_share(learned(precise, 1.0, images), precise) == 1


def test_restoring_is_seeded_and_leaves_the_teacher_alone(precise: nn.Module, stream: Stream) -> None:
    images = stream(16)
    one, same, other = (learned(precise, 0.4, images, seed) for seed in (1, 1, 2))
    states = [copy.deepcopy(dict(learner.student.named_parameters())) for learner in (one, same, other)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])
    teachers = [dict(learned(precise, restore, images).teacher.named_parameters()) for restore in (0.0, 0.4)]
    torch.testing.assert_close(teachers[0], teachers[1], rtol=0, atol=0)


def test_a_tied_weight_is_restored_as_often_as_any_other(stream: Stream) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.norm = nn.Linear(300, 40), nn.BatchNorm1d(40)
            self.one, self.two = nn.Linear(40, 40), nn.Linear(40, 40)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.two(self.one(self.norm(self.down(x.flatten(1)))))
            return logits

    model = Tied().double()
    student = learned(model, 0.4, stream(16)).student.model
    assert isinstance(student, Tied)
    assert 0.35 < float((student.one.weight == model.one.weight).double().mean()) < 0.45
