"""What a method is: frozen settings that start a learner, the learner itself, and the names methods go by.

A method is a frozen dataclass of settings. `start` is given the caller's network and a random generator and returns a
learner: a module that holds everything the method keeps while it runs (networks, memory, optimizer). Parameters,
buffers and submodules of a learner are saved, moved and reset without further code. A learner returns whatever else
changes while it runs, such as a counter, from `get_extra_state`; `resitta check` names what would be lost.

>>> "resitta" in list_methods()
True
>>> create("resitta", preset="imagenet").eta
0.05
"""

import dataclasses
import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from resitta._deprecated import rename, rename_methods, rename_settings
from resitta.accel.cuda_graphs import CudaGraphs
from resitta.errors import BadSetting, UnknownName, near
from resitta.memory.memory import Memory
from resitta.norm.float32_layers import sparing_layers
from resitta.settings import check_settings, setting
from resitta.training.label_prior import Lookahead, TemporalPrior
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Optimizer
from resitta.training.sharing import raise_norm_precision
from resitta.training.source_statistics import as_source

T = TypeVar("T")
M = TypeVar("M", bound=type["Method"])
F = TypeVar("F", bound=Callable[..., Tensor])
Needs = Literal["nothing", "norm", "batch_norm", "running_statistics"]
_methods: dict[str, type["Method"]] = {}


def graphed(function: F) -> F:
    """Run a learner's method on tensors as a CUDA graph where that is possible; elsewhere it is called as it is.

    The method must never wait for the device, and its result is overwritten by the next one: see `CudaGraphs`.
    """

    @functools.wraps(function)
    def inner(self: "Learner", *inputs: Tensor) -> Tensor:
        return self.replay(function.__get__(self), *inputs) if inputs[0].is_cuda else function(self, *inputs)

    return cast(F, inner)


class Learner(nn.Module, ABC):
    """What a method keeps on one stream. Gradients are enabled inside `step` and `learn_from`.

    Write `predict`, and then declare what the learner does and write that:

    - `learns = False`: nothing; a step is a prediction.
    - `learns_from_predictions = True`: `learn_from`, which learns from a batch and its logits, wherever they were
      predicted. Such a learner can learn in the background.
    - otherwise: `step`, which predicts and learns.
    """

    learns: ClassVar[bool] = True
    """Whether a step may change the learner."""
    learns_from_predictions: ClassVar[bool] = False
    """Whether `learn_from` learns from logits that were predicted before, here or elsewhere."""
    revises: ClassVar[bool] = False
    """Whether `learn_from` may return newer logits of the same images: a call returns them where they are finite."""
    updates: int = 0
    """How often it has learned. Add 1 after every change of parameters or statistics: guards, events, autosave and the
    hand-off of weights go by it. A batch from which nothing is learned does not count."""
    domain_changes: int = 0
    """How often it has found that another domain begins. Add 1 each time: the adapter reports it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "absorb" in vars(cls):
            cls.learns_from_predictions = True
        rename_methods(cls, absorb="learn_from", deployed="exportable_network")

    def __init__(self) -> None:
        super().__init__()
        self.replay = CudaGraphs()

    @abstractmethod
    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of a batch and change nothing."""

    def step(self, images: Tensor) -> Tensor:
        """Return the logits of a batch, as they were before learning from it, and learn from it."""
        logits = self.predict(images)
        if self.learns:
            self.learn_from(images, logits)
        return logits

    def learn_from(self, images: Tensor, logits: Tensor) -> Tensor | None:
        """Learn from a batch and the logits that `predict` returned for it; return newer logits if it `revises`."""
        raise NotImplementedError(f"{type(self).__name__} learns, and so must write step() or learn_from()")

    def may_update(self, images: Tensor) -> bool:
        """Whether a step on these images may change tensors: they are copied first, in case the step fails.

        Return False only for a step that does no more than add samples to a memory: those are undone without copies.
        """
        return self.learns

    def exportable_network(self) -> Network | None:
        """Return the network whose ordinary BatchNorm form predicts what the learner predicts, if there is one."""
        return None

    def memory(self) -> Memory | None:
        """Return the learner's memory of samples, if it keeps one."""
        return next((module for module in self.modules() if isinstance(module, Memory)), None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert; norm layers stay in float32 at least, and moments of optimizers follow their parameters."""
        super()._apply(sparing_layers(self, fn), recurse)  # type: ignore[no-untyped-call]
        raise_norm_precision(self)
        for module in self.modules():
            if isinstance(module, Optimizer):
                module.match_precision()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters for `state_dict`."""
        return {"updates": self.updates, "domain_changes": self.domain_changes}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counters back from a `state_dict`."""
        self.updates, self.domain_changes = state["updates"], state.get("domain_changes", 0)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The settings of a method. Subclass it as a frozen, keyword-only dataclass and `register` it.

    Every method has the settings declared here; the adapter applies them.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """The name in tables and on pages, such as "ResiTTA". It is not inherited; without one, `name` is printed."""
    needs: ClassVar[Needs] = "running_statistics"
    """What a model must have: "nothing", a "norm" layer with affine parameters (BatchNorm, LayerNorm, GroupNorm, ...),
    "batch_norm" layers, or such layers with "running_statistics"."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}
    renamed: ClassVar[Mapping[str, str]] = {}
    """Old names of settings and their new ones; the old ones work for one release, with a warning."""
    paper: ClassVar[str] = ""
    """The publication to cite, as `resitta methods NAME` shows it."""
    without_source: ClassVar[str] = ""
    """Of a method that needs source data: one that works without."""

    label_prior: Literal["none", "temporal"] = setting(
        "none", doc="correct predictions by what the images before tell, where neighbours share a class"
    )
    lookahead: Lookahead = setting("none", doc="with a label prior, use the images that follow in the batch, too")
    feedback: bool = setting(False, doc="with a label prior, learn from the corrected predictions")
    reset_every: int | None = setting(None, at_least=1, doc="start again from the source after this many batches")

    def __post_init__(self) -> None:
        if takes_source(self) and "source" in vars(self):
            object.__setattr__(self, "source", as_source(vars(self)["source"]))
        check_settings(self)
        if self.label_prior == "none" and (self.lookahead != "none" or self.feedback):
            raise BadSetting("lookahead and feedback belong to a label prior; pass label_prior='temporal' too")

    @property
    def trains(self) -> Trained:
        """Which parameters of the caller's network may move: none, the affine ones of norm layers, or all."""
        return "affine"

    def prepare(self, network: Network, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return what has to be known of the source data, from batches of clean images, by name.

        A method that writes this has a setting `source: Source = setting(None)`, see
        `resitta.training.source_statistics`. In `start` its value is `SourceStatistics` whose `tensors` are those
        returned here. They are computed once, saved with the adapter, and moved by `start`. Fork `network` rather than
        change it; read `batches` once. Gradients are enabled.
        """
        raise NotImplementedError(f"{self.name} needs no source data")

    @abstractmethod
    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream. Fork `network` rather than change it; draw only from `generator`.

        `network.classes` is the number of classes, `network.device` and `network.dtype` say where and how it computes.
        Gradients may be disabled here; wrap what needs them in `torch.enable_grad()`.
        """


def takes_source(method: Method | type[Method]) -> bool:
    """Whether a method needs statistics of source data.

    >>> takes_source(get_method("tent"))
    False
    """
    cls = method if isinstance(method, type) else type(method)
    return cls.prepare is not Method.prepare


COMMON = frozenset(field.name for field in dataclasses.fields(Method))
"""The settings that every method has."""


class AdapterLike(Protocol):
    """What the runtime, monitors and checkpoints use of a `resitta.Adapter`, which they do not import."""

    method: Method
    learner: Learner
    prior: TemporalPrior | None
    batches: int
    generator: torch.Generator
    samples: int
    entropies: Tensor
    lock: AbstractContextManager[Any]
    options: Any
    guard: Any
    background: Any
    fingerprint: Any
    pauses: Any
    rollback: Any
    shadow: Any

    @property
    def source(self) -> Network:
        """The caller's network."""

    @property
    def stats(self) -> Any:
        """A record of the counters, the memory, and the drift of the statistics."""

    @property
    def mean_entropy(self) -> float:
        """The mean entropy of all predictions learned from so far."""

    def learn(self, images: Tensor, predicted: Tensor | None = None, corrected: Tensor | None = None) -> Tensor:
        """Predict, unless that was done elsewhere, and learn; the caller holds `lock`."""

    def correct(self, images: Tensor, logits: Tensor) -> Tensor:
        """Correct logits by the label prior, if there is one, and teach it."""

    def reset(self) -> None:
        """Return to the source."""

    def emit(self, event: object) -> None:
        """Report an event to every callback."""

    def export(self) -> nn.Module:
        """Return an ordinary model with what was learned."""

    def save(self, path: Any) -> None:
        """Write everything learned to one file."""

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of everything learned."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Continue from a snapshot."""


def register(name: str) -> Callable[[M], M]:
    """Give a method class its public name; a name already taken is refused."""

    def decorate(cls: M) -> M:
        if name in _known():
            owner = f"{_methods[name].__module__}.{_methods[name].__qualname__}"
            advice = f"choose another, or, if its file has been imported already, say {name!r} without the file"
            raise BadSetting(f"the name {name!r} belongs to {owner}; {advice}")
        cls.name = name
        _methods[name] = cls
        if "renamed" in vars(cls):
            rename_settings(cls, cls.renamed)
        return cls

    return decorate


def list_methods() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(_known())


def needs_of_methods() -> dict[str, Needs]:
    """Return what every registered method needs of a model, by name.

    >>> needs_of_methods()["source"]
    'nothing'
    """
    return {name: method.needs for name, method in _known().items()}


def forget(module: str) -> None:
    """Remove the names that a module registered, because it is about to run again."""
    for name in [name for name, cls in _methods.items() if cls.__module__ == module]:
        del _methods[name]


def get_method(name: str) -> type[Method]:
    """Return the class registered under a name."""
    known = _known()
    if name not in known:
        raise UnknownName(f"no method is called {name!r}. {near(name, known)}")
    return known[name]


def create(method: str | Method, *, preset: str | None = None, **settings: Any) -> Method:
    """Make a method from its name, or change settings of a given one; a preset comes before the settings."""
    if not isinstance(method, str | Method):
        raise BadSetting(f"a method is a name or an instance such as methods.Tent(), found a {type(method).__name__}")
    cls = get_method(method) if isinstance(method, str) else type(method)
    values = {} if preset is None else dict(_preset(cls, preset))
    values.update(rename(settings, cls.renamed))
    known = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in known:
            raise UnknownName(f"{cls.name} has no setting {key!r}. {near(key, known)}")
    return cls(**values) if isinstance(method, str) else dataclasses.replace(method, **values)


def _known() -> dict[str, type[Method]]:
    """All methods by name; the built-in ones register themselves when their package is imported."""
    importlib.import_module("resitta.methods")
    return _methods


def _preset(cls: type[Method], preset: str) -> dict[str, Any]:
    if not isinstance(preset, str):
        raise BadSetting(f"a preset is a name such as 'cifar10', found {preset!r}")
    if preset not in cls.presets:
        raise UnknownName(f"{cls.name} has no preset {preset!r}. {near(preset, cls.presets)}")
    return dict(cls.presets[preset])
