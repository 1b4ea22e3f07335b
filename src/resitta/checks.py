"""The conformance suite: what every method promises, runnable on a method of your own.

>>> import resitta
>>> passed = resitta.check_method("source")
>>> "reset_is_bit_exact" in passed
True
"""

import copy
import dataclasses
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.components.bn_layers import bn_layers
from resitta.components.network import Network
from resitta.errors import NonConformant, NonFiniteImages, NotExportable
from resitta.method import Method
from resitta.registry import create


def check_method(
    method: str | Method,
    *,
    model: nn.Module | None = None,
    shape: tuple[int, int, int] = (3, 16, 16),
    device: str = "cpu",
) -> tuple[str, ...]:
    """Run the whole suite on a method and return the names of the checks it passed.

    Args:
        method: a registered name, or a method with its settings.
        model: a classifier of your own to check with; by default a small convolutional one.
        shape: channels, height and width of the images the model takes.
        device: where to run.

    Raises:
        NonConformant: names the promise that was broken and how.
    """
    chosen = create(method)
    bench = Bench(chosen, copy.deepcopy(model or tiny_network(shape[0])).to(device).eval(), shape, torch.device(device))
    for check in CHECKS:
        try:
            with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
                check(bench)
        except NonConformant as error:
            raise NonConformant(f"{chosen.name} fails {check.__name__}: {error}") from error
    return tuple(check.__name__ for check in CHECKS)


@dataclass(frozen=True)
class Bench:
    """A method on the bench: the model, and the means to make adapters and images."""

    method: Method
    model: nn.Module
    shape: tuple[int, int, int]
    device: torch.device

    def adapter(self, seed: int = 0) -> Adapter:
        """A fresh adapter."""
        return Adapter(self.model, self.method, seed=seed)

    def images(self, n: int, seed: int = 0) -> Tensor:
        """Random images whose brightness drifts, so that there is something to adapt to."""
        generator = torch.Generator().manual_seed(seed)
        shade = torch.linspace(0.3, 0.9, n).view(-1, 1, 1, 1)
        return (torch.rand((n, *self.shape), generator=generator) * shade).to(self.device)

    def run(self, adapter: Adapter, n: int = 200, size: int = 50) -> Tensor:
        """Feed a stream to an adapter and return all logits."""
        return torch.cat([adapter(batch) for batch in torch.split(self.images(n), size)])


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


def settings_are_frozen_keywords(bench: Bench) -> None:
    """Settings are a frozen, keyword-only dataclass; every preset can be made."""
    cls = type(bench.method)
    expect(dataclasses.is_dataclass(cls) and _frozen(cls), "the method must be a frozen dataclass")
    expect(all(field.kw_only for field in dataclasses.fields(cls)), "its settings must be keyword-only")
    for preset in cls.presets:
        create(bench.method, preset=preset)


def model_of_the_caller_is_unchanged(bench: Bench) -> None:
    """Neither tensors nor modes nor gradients of the caller's model change."""
    before, modes = copy.deepcopy(bench.model.state_dict()), [m.training for m in bench.model.modules()]
    bench.run(bench.adapter())
    expect(_equal(before, bench.model.state_dict()), "the caller's model has changed")
    expect(modes == [m.training for m in bench.model.modules()], "a module of the caller's changed its mode")
    expect(all(p.grad is None for p in bench.model.parameters()), "the caller's model has gradients")


def only_declared_parameters_move(bench: Bench) -> None:
    """What `trains` does not declare stays equal to the source."""
    adapter = bench.adapter()
    bench.run(adapter)
    keep_affine = bench.method.trains == "none"
    if bench.method.trains == "all":
        return
    source = list(_frozen_tensors(adapter.source, keep_affine))
    for network in (m for m in adapter.learner.modules() if isinstance(m, Network)):
        for (name, tensor), (_, original) in zip(_frozen_tensors(network, keep_affine), source, strict=True):
            expect(torch.equal(tensor, original), f"{name} moved, but trains={bench.method.trains!r}")


def reset_is_bit_exact(bench: Bench) -> None:
    """After `reset` an adapter is indistinguishable from a new one."""
    adapter = bench.adapter()
    first = bench.run(adapter)
    adapter.reset()
    expect(_equal(adapter.state_dict(), bench.adapter().state_dict()), "reset() left some state behind")
    expect(torch.equal(bench.run(adapter), first), "the same stream after reset() gave other logits")


def same_seed_gives_same_logits(bench: Bench) -> None:
    """Two adapters with one seed agree bit for bit, whatever torch's global generator does."""
    first = bench.run(bench.adapter(seed=3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        expect(torch.equal(bench.run(bench.adapter(seed=3)), first), "the same seed gave other logits")


def state_dict_continues(bench: Bench) -> None:
    """An adapter that loads another's state goes on exactly as the other does."""
    adapter, other = bench.adapter(seed=1), bench.adapter(seed=2)
    bench.run(adapter, n=170, size=34)
    other.load_state_dict(adapter.state_dict())
    expect(torch.equal(bench.run(adapter), bench.run(other)), "the loaded state continued differently")
    expect(_equal(adapter.state_dict(), other.state_dict()), "the states differ after going on")


def any_batch_size(bench: Bench) -> None:
    """One image, many, and changing numbers of them are taken; shape, type and device are right."""
    adapter = bench.adapter()
    for size in (1, 130, 1, 7, 64):
        logits = adapter(bench.images(size))
        expect(len(logits) == size and logits.ndim == 2, f"{size} images gave logits {tuple(logits.shape)}")
        expect(bool(logits.isfinite().all()), f"logits of a batch of {size} are not finite")
        expect(not logits.requires_grad, "logits carry a graph")
        expect(
            logits.device.type == bench.device.type and logits.dtype == torch.float32, "logits changed device or type"
        )


def follows_precision(bench: Bench) -> None:
    """A double-precision model gives double-precision logits."""
    adapter = Adapter(copy.deepcopy(bench.model).double(), bench.method)
    expect(bench.run(adapter).dtype == torch.float64, "a float64 model did not give float64 logits")


def works_in_any_grad_mode(bench: Bench) -> None:
    """`no_grad` and `inference_mode` around the call change nothing."""
    plain = bench.run(bench.adapter())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expect(torch.equal(bench.run(bench.adapter()), plain), f"logits differ under torch.{mode.__name__}")


def paused_changes_nothing(bench: Bench) -> None:
    """Inside `paused` the state stands still."""
    adapter = bench.adapter()
    bench.run(adapter)
    before = adapter.state_dict()
    with adapter.paused():
        bench.run(adapter)
    expect(_equal(before, adapter.state_dict()), "paused() did not stop learning")


def bad_input_changes_nothing(bench: Bench) -> None:
    """A batch that is refused leaves no trace."""
    adapter = bench.adapter()
    bench.run(adapter)
    before = adapter.state_dict()
    try:
        adapter(bench.images(4) * float("nan"))
    except NonFiniteImages:
        expect(_equal(before, adapter.state_dict()), "a refused batch changed the state")
    else:
        raise NonConformant("NaN images were not refused")


def memory_is_bounded(bench: Bench) -> None:
    """A longer stream needs no more tensors than a shorter one."""
    adapter = bench.adapter()
    bench.run(adapter, n=400)
    before = _bytes_alive()
    bench.run(adapter, n=1200)
    grown = _bytes_alive() - before
    expect(grown <= 4096, f"{grown:,} further bytes of tensors are alive after 1,200 further samples")


def export_predicts_the_same(bench: Bench) -> None:
    """Where a method can be exported, the plain model predicts what the paused adapter does."""
    adapter = bench.adapter()
    bench.run(adapter)
    try:
        plain = adapter.export()
    except NotExportable:
        return
    images = bench.images(20, seed=9)
    with adapter.paused(), torch.no_grad():
        expect(torch.allclose(plain(images), adapter(images), atol=1e-5), "export() predicts something else")
    expect(list(plain.state_dict()) == list(bench.model.state_dict()), "export() has other keys than the model")


CHECKS: tuple[Callable[[Bench], None], ...] = (
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
