import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resitta import adapt
from resitta.errors import BadSetting, NotExportable
from resitta.methods import ResiTTA

Stream = Callable[[int], Tensor]
SHORT: dict[str, Any] = {"capacity": 24, "update_every": 16, "mature_age": 20, "forget_age": 60}
BRISK: dict[str, Any] = {"lr": 0.01, "eta": 0.03, "nu_b": 0.2, "nu_m": 0.1}


VARIANTS = [
    *[{}, {"norm": "rbn"}, {"norm": "adbn"}, {"refresh": True}, {"train": "all"}],
    *[{"intransigent": True}, {"intransigent": True, "refresh": True}],
    *[{"drop_outdated": False}, {"drop_overconfident": False}, {"compare_uncertainty": False}],
]


def darker(images: Tensor) -> Tensor:
    """A strong view free of chance. With the identity the first gradient is zero, which Adam divides by zero."""
    return images.flip(3) * 0.7 + 0.1


def laid_out(images: Tensor) -> Tensor:
    """The layout in which ResiTTA computes: in another one, convolutions round differently."""
    return images.contiguous(memory_format=torch.channels_last)


class LiteralBN(nn.Module):
    """BatchNorm of the method written out: target statistics, source statistics, affine parameters."""

    def __init__(self, layer: _BatchNorm, norm: str, nu_b: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.norm, self.nu_b = layer.weight, layer.bias, layer.eps, norm, nu_b
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.var = layer.running_mean, layer.running_var
        self.source_mean, self.source_std = layer.running_mean.clone(), layer.running_var.sqrt()
        self.learning = False

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.norm == "adbn":
            mean, var = self.moments(x)
        elif self.learning:
            batch_mean, batch_var = self.moments(x.detach() if self.norm == "resibn" else x)
            mean = (1 - self.nu_b) * mean + self.nu_b * batch_mean
            var = (1 - self.nu_b) * var + self.nu_b * batch_var
            self.mean, self.var = mean.detach(), var.detach()
        shape = [1, -1] + [1] * (x.ndim - 2)
        out = (x - mean.view(shape)) / (var.view(shape) + self.eps).sqrt()
        return out if self.weight is None else out * self.weight.view(shape) + self.bias.view(shape)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = x.transpose(0, 1).flatten(1)
        mean = values.mean(1)
        return mean, ((values - mean[:, None]) ** 2).mean(1)

    def align(self, eta: float) -> None:
        std = self.var.sqrt()
        self.mean = self.mean - 2 * eta * (self.mean - self.source_mean)
        self.var = (std - 2 * eta * (std - self.source_std)) ** 2


@dataclass
class Sample:
    image: Tensor
    label: int
    entropy: float
    age: int = 0


@dataclass
class Literal:
    """The whole method, sample by sample, on copies of the model."""

    model: nn.Module
    lr: float = 1e-3
    eta: float = 0.01
    nu_b: float = 0.05
    nu_m: float = 0.001
    capacity: int = 64
    update_every: int = 64
    forget_age: int = 1000
    mature_age: int = 200
    norm: str = "resibn"
    drop_outdated: bool = True
    drop_overconfident: bool = True
    compare_uncertainty: bool = True
    refresh: bool = False
    train: str = "affine"
    intransigent: bool = False
    strong_view: Callable[[Tensor], Tensor] = darker

    def __post_init__(self) -> None:
        self.teacher, self.student = self.network(), self.network()
        self.layers = [m for net in (self.teacher, self.student) for m in net.modules() if isinstance(m, LiteralBN)]
        trained = self.trained(self.student)
        self.optimizer = torch.optim.Adam(trained, lr=self.lr, betas=(0.9, 0.999)) if trained else None
        self.generator = torch.Generator().manual_seed(0)
        self.bank: list[Sample] = []
        self.fired: Counter[str] = Counter()
        self.count = 0

    def network(self) -> nn.Module:
        net = copy.deepcopy(self.model)
        for name, layer in list(net.named_modules()):
            if isinstance(layer, _BatchNorm):
                net.set_submodule(name, LiteralBN(layer, self.norm, self.nu_b))
        return net

    def trained(self, net: nn.Module) -> list[nn.Parameter]:
        if self.train == "all":
            return list(net.parameters())
        layers = [module for module in net.modules() if isinstance(module, LiteralBN)]
        return [parameter for layer in layers for parameter in layer.parameters()]

    def scores(self, images: Tensor) -> tuple[Tensor, list[int], list[float]]:
        with torch.no_grad():
            predictor = self.student if self.intransigent else self.teacher
            logits: Tensor = predictor(laid_out(images))
        log_p = logits.float().log_softmax(1)
        return logits, logits.argmax(1).tolist(), (-(log_p.exp() * log_p).sum(1)).tolist()

    def __call__(self, images: Tensor) -> Tensor:
        logits, labels, entropies = self.scores(images)
        for image, label, entropy in zip(images, labels, entropies, strict=True):
            self.add(Sample(image, label, entropy))
            self.count += 1
            if self.count % self.update_every == 0:
                self.update()
        return logits

    def add(self, new: Sample) -> None:
        for sample in self.bank:
            sample.age += 1
        if len(self.bank) < self.capacity:
            self.bank.append(new)
            return
        rule, leaving = self.leaving(new)
        self.fired[rule] += 1
        if leaving is not None:
            self.bank[leaving] = new

    def leaving(self, new: Sample) -> tuple[str, int | None]:
        members = Counter(sample.label for sample in self.bank)
        dominant = [i for i, s in enumerate(self.bank) if members[s.label] == max(members.values())]
        old = [i for i in dominant if self.bank[i].age >= self.forget_age]
        if old and self.drop_outdated:
            return "outdated", max(old, key=lambda i: self.bank[i].age)
        lowest = {c: min(s.entropy for s in self.bank if s.label == c) for c in members}
        mature = [i for i in dominant if self.bank[i].age >= self.mature_age]
        sure = [i for i in mature if self.bank[i].entropy == lowest[self.bank[i].label]]
        if sure and self.drop_overconfident:
            return "overconfident", min(sure, key=lambda i: (self.bank[i].entropy, -self.bank[i].age))
        if not self.compare_uncertainty:
            return "random", dominant[int(torch.randint(len(dominant), (), generator=self.generator))]
        doubtful = max(dominant, key=lambda i: (self.bank[i].entropy, self.bank[i].age))
        return ("uncertain", doubtful) if new.entropy < self.bank[doubtful].entropy else ("discarded", None)

    def update(self) -> None:
        images = torch.stack([sample.image for sample in self.bank])
        for layer in self.layers:
            layer.learning = True
        with torch.no_grad():
            targets = self.teacher(laid_out(images)).softmax(1)
        loss = -(targets * self.student(laid_out(self.strong_view(images))).log_softmax(1)).sum(1).mean()
        for layer in self.layers:
            layer.learning = False
        if self.optimizer:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if self.norm == "resibn":
            for layer in self.layers:
                layer.align(self.eta)
        with torch.no_grad():
            nu_m = 0.0 if self.intransigent else self.nu_m
            for slow, fast in zip(self.trained(self.teacher), self.trained(self.student), strict=True):
                slow.copy_((1 - nu_m) * slow + nu_m * fast)
        if self.refresh:
            _, labels, entropies = self.scores(images)
            for sample, label, entropy in zip(self.bank, labels, entropies, strict=True):
                sample.label, sample.entropy = label, entropy


def run(step: Callable[[Tensor], Tensor], images: Tensor, batch_size: int) -> Tensor:
    return torch.cat([step(batch) for batch in torch.split(images, batch_size)])


def compare(model: nn.Module, images: Tensor, batch_size: int = 50, **settings: Any) -> Literal:
    """Run the adapter and the literal method on the same stream; their logits must agree."""
    literal = Literal(model, **settings)
    adapter = adapt(model, "resitta", strong_view=darker, **settings)
    expected = run(literal, images, batch_size)
    tolerance = 1e-5 if images.dtype == torch.float32 else 1e-9
    torch.testing.assert_close(run(adapter, images, batch_size), expected, rtol=0, atol=tolerance)
    with torch.no_grad():
        assert (expected - model(images)).abs().max() > 0.02  # the run has led away from the source
    return literal


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 200])
def test_a_long_stream_in_single_precision(model: nn.Module, stream: Stream, batch_size: int) -> None:
    literal = compare(model, stream(2000).float(), batch_size, mature_age=100, forget_age=300)
    assert all(literal.fired[rule] > 50 for rule in ("outdated", "overconfident", "uncertain", "discarded"))


def test_the_defaults_are_those_of_the_paper(precise: nn.Module, stream: Stream) -> None:
    literal = compare(precise, stream(2000), 64)
    assert all(literal.fired[rule] > 5 for rule in ("outdated", "overconfident", "uncertain", "discarded"))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_ablations_and_options(precise: nn.Module, stream: Stream, settings: dict[str, Any]) -> None:
    literal = compare(precise, stream(600), **SHORT, **BRISK, **settings)
    off = {"drop_outdated": "outdated", "drop_overconfident": "overconfident", "compare_uncertainty": "uncertain"}
    silent = {rule for option, rule in off.items() if settings.get(option) is False}
    assert all((literal.fired[rule] > 5) == (rule not in silent) for rule in off.values())


@pytest.mark.parametrize(("preset", "eta"), [("cifar10", 0.01), ("cifar100", 0.01), ("imagenet", 0.05)])
def test_presets(precise: nn.Module, stream: Stream, preset: str, eta: float) -> None:
    images, named = stream(300), adapt(precise, "resitta", preset=preset, strong_view=darker)
    expected = run(Literal(precise, eta=eta), images, 64)
    torch.testing.assert_close(run(named, images, 64), expected, rtol=0, atol=1e-9)


class Volume(nn.Module):
    """Images as a volume one deep, for layers in three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(3, 8, (1, 3, 3)), nn.BatchNorm3d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x.unsqueeze(2)).mean((2, 3, 4)))
        return logits


def kinds_of_network() -> dict[str, nn.Module]:
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    conv, hidden, head = nn.Conv2d(3, 8, 3), nn.Linear(300, 8), nn.Linear(8, 4)
    return {
        "1d": nn.Sequential(nn.Flatten(), hidden, nn.BatchNorm1d(8), nn.ReLU(), head),
        "3d": Volume(),
        "sync": nn.Sequential(conv, nn.SyncBatchNorm(8), nn.ReLU(), *pooled, head),
        "some affine": nn.Sequential(conv, nn.BatchNorm2d(8, affine=False), *pooled, head, nn.BatchNorm1d(4)),
        "no affine": nn.Sequential(conv, nn.BatchNorm2d(8, affine=False), nn.ReLU(), *pooled, head),
        "large eps": nn.Sequential(conv, nn.BatchNorm2d(8, eps=0.1), nn.ReLU(), *pooled, head),
    }


@pytest.mark.parametrize("kind", ["1d", "3d", "sync", "some affine", "no affine", "large eps"])
def test_every_kind_of_batch_norm(stream: Stream, kind: str) -> None:
    model, images = kinds_of_network()[kind].double(), stream(400)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.running_mean, layer.running_var = torch.randn(2, layer.num_features).double().square() + 0.1
    compare(model.eval(), images, **SHORT, **BRISK)


def forward_by_kernels(layer: LiteralBN, x: Tensor) -> Tensor:
    """The literal layer again, rounding as torch's own kernels do."""
    if layer.learning:
        mean, var = torch.batch_norm_update_stats(x.detach(), None, None, 0.0)
        layer.mean, layer.var = layer.mean.lerp(mean, layer.nu_b), layer.var.lerp(var, layer.nu_b)
    return nn.functional.batch_norm(x, layer.mean, layer.var, layer.weight, layer.bias, eps=layer.eps)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 200])
def test_the_identity_as_view(
    model: nn.Module, stream: Stream, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Student and teacher start equal, so the first gradient is nothing but rounding, and Adam makes full steps of it:
    # both sides must round alike to agree.
    monkeypatch.setattr(LiteralBN, "forward", forward_by_kernels)
    images = stream(2000).float()
    adapter = adapt(model, "resitta", strong_view=lambda images: images)
    expected = run(Literal(model, strong_view=lambda images: images), images, batch_size)
    torch.testing.assert_close(run(adapter, images, batch_size), expected, rtol=0, atol=1e-5)


def test_the_paper_s_view_is_seeded(model: nn.Module, stream: Stream) -> None:
    def logits(**settings: Any) -> Tensor:
        return run(adapt(model, "resitta", **BRISK, update_every=16, **settings), stream(200).float(), 50)

    torch.testing.assert_close(logits(seed=1), logits(seed=1), rtol=0, atol=0)
    assert not torch.allclose(logits(seed=1), logits(seed=2), atol=1e-4)
    assert not torch.allclose(logits(seed=1), logits(seed=1, per_sample=True), atol=1e-4)


def test_an_empty_bank_is_not_trained_on(precise: nn.Module, stream: Stream) -> None:
    with torch.no_grad():
        precise.get_parameter("8.bias").fill_(torch.nan)
    adapter = adapt(precise, "resitta", update_every=4)
    adapter(stream(9))
    assert adapter.stats.updates == 0


@pytest.mark.parametrize("norm", ["resibn", "rbn"])
def test_its_export_predicts_the_same(precise: nn.Module, stream: Stream, norm: str) -> None:
    adapter = adapt(precise, "resitta", norm=norm, **BRISK, update_every=16)
    adapter(stream(100))
    with adapter.paused():
        expected = adapter(stream(20))
    torch.testing.assert_close(adapter.export()(stream(20)), expected)


def test_batch_statistics_cannot_be_exported(precise: nn.Module) -> None:
    with pytest.raises(NotExportable, match="resitta"):
        adapt(precise, "resitta", norm="adbn").export()


@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_micro_batches_give_the_same_result(size: int) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LazyConv2d(6, 3), nn.BatchNorm2d(6), nn.ReLU()) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.LazyLinear(4))
    model(torch.rand(2, 3, 10, 10))
    model = model.double().eval()
    whole, parts = adapt(model, "resitta"), adapt(model, "resitta", micro_batch=size)
    for seed in range(4):
        images = torch.rand(64, 3, 10, 10, generator=torch.Generator().manual_seed(seed)).double()
        torch.testing.assert_close(parts(images), whole(images), rtol=1e-7, atol=1e-9)
    assert whole.stats.updates == parts.stats.updates == 4


def test_micro_batches_need_statistics_without_gradient() -> None:
    with pytest.raises(BadSetting, match="micro_batch needs norm='resibn', found 'rbn'"):
        ResiTTA(micro_batch=8, norm="rbn")
