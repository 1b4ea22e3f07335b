"""The small protocol a method fulfils: frozen settings that start a learner, and the learner itself.

A method is a frozen dataclass of settings. `start` gives it the caller's network and a random generator and gets back
a learner: a module that holds whatever the method keeps while it runs (networks, memory, optimizer).
Everything a learner registers as parameter, buffer or submodule is saved, moved and reset without further code; what
else changes while it runs, such as a counter, it returns from `get_extra_state`. `resitta check` names what is lost.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import Replay
from resitta.errors import BadSetting
from resitta.memory.memory import Memory
from resitta.settings import check_settings
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Optimizer
from resitta.training.sharing import raise_bn_precision

Needs = Literal["nothing", "batch_norm", "running_statistics"]


class Learner(nn.Module, ABC):
    """What a method keeps on one stream. Gradients are enabled inside `step`.

    `self.replay(function, *tensors)` calls a function that never waits for the device; see `Replay`.
    """

    updates: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.replay = Replay()

    @abstractmethod
    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of a batch and change nothing."""

    def step(self, images: Tensor) -> Tensor:
        """Return the logits of a batch, as they were before learning from it, and learn from it.

        A method that learns from what was predicted, whenever that was, writes `learn_from` instead.
        """
        logits = self.predict(images)
        self.learn_from(images, logits)
        return logits

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        """Learn from a batch and what `predict` said of it."""
        raise BadSetting(f"{type(self).__name__} learns only from what it predicts itself; leave out background=True")

    def may_update(self, images: Tensor) -> bool:
        """Whether a step on these images may change tensors: they are copied first, in case the step fails.

        Say False only for steps that do no more than `Rollback.keep` allows without tensors.
        """
        return type(self).step is not type(self).predict

    @property
    def predicts_first(self) -> bool:
        """Whether a step is a prediction, which changes nothing, and then learning from it."""
        return type(self).step is Learner.step

    def exportable_network(self) -> Network | None:
        """Return the network whose ordinary BatchNorm form predicts what the learner predicts, if there is one."""
        return None

    def memory(self) -> Memory | None:
        """Return the learner's memory of samples, if it keeps one."""
        return next((module for module in self.modules() if isinstance(module, Memory)), None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert; BatchNorm stays in float32 at least, and moments of optimizers follow their parameters."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        raise_bn_precision(self)
        for module in self.modules():
            if isinstance(module, Optimizer):
                module.match_precision()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters for `state_dict`."""
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counters back from a `state_dict`."""
        self.updates = state["updates"]


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The settings of a method. Subclass it as a frozen, keyword-only dataclass and `register` it."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """The name in tables and on pages, such as "ResiTTA". It is not inherited; without one, `name` is printed."""
    needs: ClassVar[Needs] = "running_statistics"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}
    paper: ClassVar[str] = ""
    """The publication to cite, as `resitta methods NAME` shows it."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def trains(self) -> Trained:
        """Which parameters of the caller's network may move: none, the BatchNorm affine ones, or all."""
        return "affine"

    @abstractmethod
    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream. Fork `network` rather than change it; draw only from `generator`.

        `network.classes` is the number of classes, `network.device` and `network.dtype` say where and how it computes.
        """
