"""The conformance suite: what every method promises, runnable on a method of your own.

>>> import resitta
>>> passed = resitta.check_method("source")
>>> "reset_is_bit_exact" in passed
True
"""

import copy
import dataclasses
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.components.bn_layers import bn_layers
from resitta.components.network import Network
from resitta.errors import BadImages, NonConformant, NotExportable
from resitta.method import Method
from resitta.registry import create


def check_method(
    method: str | Method,
    *,
    model: nn.Module | None = None,
    shape: tuple[int, int, int] = (3, 16, 16),
    device: str = "cpu",
    **options: Any,
) -> tuple[str, ...]:
    """Run the whole suite on a method and return the names of the checks it passed.

    Args:
        method: a registered name, or a method with its settings.
        model: a classifier of your own to check with; by default a small convolutional one.
        shape: channels, height and width of the images the model takes.
        device: where to run.
        options: further options of `adapt` that the model needs, such as `output=` or `normalized=`.

    Raises:
        NonConformant: names the promise that was broken and how.
    """
    chosen = create(method)
    subject = Subject(
        chosen, copy.deepcopy(model or tiny_network(shape[0])).to(device).eval(), shape, torch.device(device), options
    )
    for check in CHECKS:
        try:
            with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
                check(subject)
        except NonConformant as error:
            raise NonConformant(f"{chosen.name} fails {check.__name__}: {error}") from error
    return tuple(check.__name__ for check in CHECKS)


@dataclass(frozen=True)
class Subject:
    """A method under test: the model, and the means to make adapters and images."""

    method: Method
    model: nn.Module
    shape: tuple[int, int, int]
    device: torch.device
    options: dict[str, Any]

    def adapter(self, seed: int = 0) -> Adapter:
        """A fresh adapter."""
        return Adapter(self.model, self.method, seed=seed, **self.options)

    def images(self, n: int, seed: int = 0) -> Tensor:
        """Random images whose brightness drifts, so that there is something to adapt to."""
        generator = torch.Generator().manual_seed(seed)
        shade = torch.linspace(0.3, 0.9, n).view(-1, 1, 1, 1)
        return (torch.rand((n, *self.shape), generator=generator) * shade).to(self.device)

    def run(self, adapter: Adapter, n: int = 200, size: int = 50) -> Tensor:
        """Feed a stream to an adapter, which learns from each batch before the next one, and return all logits."""
        logits = []
        for batch in torch.split(self.images(n), size):
            logits.append(adapter(batch))
            adapter.sync()
        return torch.cat(logits)


def tiny_network(channels: int = 3, classes: int = 5) -> nn.Module:
    """A convolutional classifier with two BatchNorm layers whose statistics are not the trivial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (
            *(nn.Conv2d(channels, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)),
        )
        network = nn.Sequential(*layers)
        for _ in range(10):
            network(torch.rand(32, channels, 16, 16))
    return network.eval()


def settings_are_frozen_keywords(subject: Subject) -> None:
    """Settings are a frozen, keyword-only dataclass; every preset can be made."""
    cls = type(subject.method)
    expect(dataclasses.is_dataclass(cls) and _frozen(cls), "the method must be a frozen dataclass")
    expect(all(field.kw_only for field in dataclasses.fields(cls)), "its settings must be keyword-only")
    for preset in cls.presets:
        create(subject.method, preset=preset)


def model_of_the_caller_is_unchanged(subject: Subject) -> None:
    """Neither tensors nor modes nor gradients of the caller's model change."""
    before, modes = copy.deepcopy(subject.model.state_dict()), [m.training for m in subject.model.modules()]
    subject.run(subject.adapter())
    expect(_equal(before, subject.model.state_dict()), "the caller's model has changed")
    expect(modes == [m.training for m in subject.model.modules()], "a module of the caller's changed its mode")
    expect(all(p.grad is None for p in subject.model.parameters()), "the caller's model has gradients")


def only_declared_parameters_move(subject: Subject) -> None:
    """What `trains` does not declare stays equal to the source."""
    adapter = subject.adapter()
    subject.run(adapter)
    keep_affine = subject.method.trains == "none"
    if subject.method.trains == "all":
        return
    source = list(_frozen_tensors(adapter.source, keep_affine))
    for network in (m for m in adapter.learner.modules() if isinstance(m, Network)):
        for (name, tensor), (_, original) in zip(_frozen_tensors(network, keep_affine), source, strict=True):
            expect(torch.equal(tensor, original), f"{name} moved, but trains={subject.method.trains!r}")


def reset_is_bit_exact(subject: Subject) -> None:
    """After `reset` an adapter is indistinguishable from a new one."""
    adapter = subject.adapter()
    first = subject.run(adapter)
    adapter.reset()
    expect(_equal(adapter.state_dict(), subject.adapter().state_dict()), "reset() left some state behind")
    expect(torch.equal(subject.run(adapter), first), "the same stream after reset() gave other logits")


def same_seed_gives_same_logits(subject: Subject) -> None:
    """Two adapters with one seed agree bit for bit, whatever torch's global generator does."""
    first = subject.run(subject.adapter(seed=3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        expect(torch.equal(subject.run(subject.adapter(seed=3)), first), "the same seed gave other logits")


def state_dict_continues(subject: Subject) -> None:
    """An adapter that loads another's state goes on exactly as the other does."""
    adapter, other = subject.adapter(seed=1), subject.adapter(seed=2)
    subject.run(adapter, n=170, size=34)
    other.load_state_dict(adapter.state_dict())
    expect(torch.equal(subject.run(adapter), subject.run(other)), "the loaded state continued differently")
    expect(_equal(adapter.state_dict(), other.state_dict()), "the states differ after going on")


def any_batch_size(subject: Subject) -> None:
    """One image, many, and changing numbers of them are taken; shape, type and device are right."""
    adapter = subject.adapter()
    for size in (1, 130, 1, 7, 64):
        logits = adapter(subject.images(size))
        expect(len(logits) == size and logits.ndim == 2, f"{size} images gave logits {tuple(logits.shape)}")
        expect(bool(logits.isfinite().all()), f"logits of a batch of {size} are not finite")
        expect(not logits.requires_grad, "logits carry a graph")
        expect(
            logits.device.type == subject.device.type and logits.dtype == torch.float32, "logits changed device or type"
        )


def follows_precision(subject: Subject) -> None:
    """A double-precision model gives double-precision logits."""
    adapter = Adapter(copy.deepcopy(subject.model).double(), subject.method, **subject.options)
    expect(subject.run(adapter).dtype == torch.float64, "a float64 model did not give float64 logits")


def works_in_any_grad_mode(subject: Subject) -> None:
    """`no_grad` and `inference_mode` around the call change nothing."""
    plain = subject.run(subject.adapter())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expect(torch.equal(subject.run(subject.adapter()), plain), f"logits differ under torch.{mode.__name__}")


def paused_changes_nothing(subject: Subject) -> None:
    """Inside `paused` the state stands still."""
    adapter = subject.adapter()
    subject.run(adapter)
    before = adapter.state_dict()
    with adapter.paused():
        subject.run(adapter)
    expect(_equal(before, adapter.state_dict()), "paused() did not stop learning")


def bad_input_changes_nothing(subject: Subject) -> None:
    """A batch that is refused leaves no trace."""
    adapter = subject.adapter()
    subject.run(adapter)
    before, good = adapter.state_dict(), subject.images(4)
    bad = {"NaN": good * float("nan"), "huge": good + 99, "empty": good[:0], "flat": good[0], "8-bit": good.byte()}
    for kind, images in bad.items():
        try:
            adapter(images)
        except BadImages:
            expect(_equal(before, adapter.state_dict()), f"a refused batch ({kind}) changed the state")
        else:
            raise NonConformant(f"{kind} images were not refused")


def memory_is_bounded(subject: Subject) -> None:
    """A longer stream needs no more memory than a shorter one, and no graph outlives its step."""
    adapter = subject.adapter()
    tracemalloc.start()
    try:
        subject.run(adapter, n=400)
        tensors, host = _bytes_alive(), tracemalloc.get_traced_memory()[0]
        subject.run(adapter, n=1200)
        grown, host = _bytes_alive() - tensors, tracemalloc.get_traced_memory()[0] - host
    finally:
        tracemalloc.stop()
    expect(grown <= 4096, f"{grown:,} further bytes of tensors are alive after 1,200 further samples")
    expect(host <= 2**18, f"{host:,} further bytes are held by Python after 1,200 further samples")
    expect(not _graphs(adapter), "a tensor with a graph is kept between steps; detach it")


def export_predicts_the_same(subject: Subject) -> None:
    """Where a method can be exported, the plain model predicts what the paused adapter does."""
    adapter = subject.adapter()
    subject.run(adapter)
    try:
        plain = adapter.export()
    except NotExportable:
        return
    images = subject.images(20, seed=9)
    with adapter.paused(), torch.no_grad():
        expect(torch.allclose(plain(images), adapter(images), atol=1e-5), "export() predicts something else")
    expect(list(plain.state_dict()) == list(subject.model.state_dict()), "export() has other keys than the model")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    settings_are_frozen_keywords,
    model_of_the_caller_is_unchanged,
    only_declared_parameters_move,
    reset_is_bit_exact,
    same_seed_gives_same_logits,
    state_dict_continues,
    any_batch_size,
    follows_precision,
    works_in_any_grad_mode,
    paused_changes_nothing,
    bad_input_changes_nothing,
    memory_is_bounded,
    export_predicts_the_same,
)


def expect(kept: bool, broken: str) -> None:
    """Raise unless a promise was kept."""
    if not kept:
        raise NonConformant(broken)


def _frozen(cls: type) -> bool:
    return bool(cls.__dict__["__dataclass_params__"].frozen)


def _frozen_tensors(network: Network, keep_affine: bool) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a network, in a fixed order, without the BatchNorm affine ones unless asked for."""
    affine = {id(p) for _, layer in bn_layers(network.model) for p in (layer.weight, layer.bias)}
    return ((name, p) for name, p in network.all_parameters() if keep_affine or id(p) not in affine)


def _equal(one: object, other: object) -> bool:
    """Compare nested states bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _bytes_alive() -> int:
    gc.collect()
    return sum(t.numel() * t.element_size() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter))


def _graphs(adapter: Adapter) -> bool:
    """Whether an attribute of the learner is a tensor that still has a graph."""
    values = [value for module in adapter.learner.modules() for value in vars(module).values()]
    tensors = [*values, *adapter.learner.buffers(), *adapter.learner.parameters()]
    return any(isinstance(value, Tensor) and value.grad_fn is not None for value in tensors)
