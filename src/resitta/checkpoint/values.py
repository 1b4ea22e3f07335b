"""Validation of a loaded state: a file made by hand can hold values that no adapter produces."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resitta.errors import BadState
from resitta.memory.memory import Memory
from resitta.memory.pbrs import PBRS
from resitta.method import AdapterLike
from resitta.monitor.guard.snapshot import Snapshot
from resitta.norm.bn_layers import AdaptiveBN
from resitta.training.domain_shift import DomainShiftDetector

MOST_CLASSES = 2**20
"""An upper bound: memories allocate a count per class."""


def check_values(adapter: AdapterLike) -> None:
    """Raise BadState unless all values are valid, those of a guard's snapshots included; nothing is changed."""
    _check_count(adapter.samples, "samples")
    if adapter.entropies.shape != (2,):
        raise BadState(f"its sums of entropies have the shape {tuple(adapter.entropies.shape)}")
    _check_finite([("its sums of entropies", adapter.entropies)])
    check_learner(adapter.learner)
    if adapter.guard is not None and (snapshots := adapter.guard.snapshots):
        now = Snapshot(adapter)
        for snapshot in snapshots:
            _check_count(snapshot.samples, "samples")
            snapshot.restore(adapter)
            check_learner(adapter.learner)
        now.restore(adapter)


def check_learner(learner: nn.Module) -> None:
    """Raise BadState unless the values of a learner are valid."""
    _check_count(getattr(learner, "updates", 0), "updates")
    _check_finite(learner.named_parameters())
    for name, module in learner.named_modules():
        if isinstance(module, AdaptiveBN) and (statistics := module.statistics()) is not None:
            _check_moments(*statistics, name)
        elif isinstance(module, Memory):
            _check_memory(module, name)
        elif isinstance(module, DomainShiftDetector):
            _check_shift(module, name)
        for value in vars(module).values():
            if isinstance(value, torch.optim.Optimizer):
                _check_optimizer(value, name)


def _check_count(value: object, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise BadState(f"its count of {name} is {value!r}")


def _check_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise BadState(f"{name} holds values that are not finite")


def _check_moments(mean: Tensor, var: Tensor, name: str) -> None:
    _check_finite(((f"{name} mean", mean), (f"{name} variance", var)))
    if (var < 0).any():
        raise BadState(f"{name} has a variance below zero")


def _check_memory(memory: Memory, name: str) -> None:
    """Check sizes, labels, entropies, and that births are distinct and in the past."""
    for counter in ("size", "clock", "classes"):
        _check_count(getattr(memory, counter), f"{name} {counter}")
    size, classes, births = memory.size, memory.classes, memory.births
    for values, kind in ((memory.all_labels, np.int64), (births, np.int64), (memory.all_entropies, np.float64)):
        if values.shape != (memory.capacity,) or values.dtype != kind:
            raise BadState(f"{name} has {values.dtype} values of shape {values.shape} for {memory.capacity} samples")
    if size > memory.capacity:
        raise BadState(f"{name} holds {size} samples, its capacity is {memory.capacity}")
    labels, births = memory.labels, births[:size]
    if classes > MOST_CLASSES or (size and not (labels.min() >= 0 and labels.max() < (classes or MOST_CLASSES))):
        raise BadState(f"{name} has the labels {labels.tolist()[:8]}..., there are {classes} classes")
    if size and not (births.min() >= 0 and births.max() <= memory.clock and len(np.unique(births)) == size):
        raise BadState(f"{name} has samples with negative or equal ages")
    if not (np.isfinite(memory.entropies).all() and (memory.entropies >= 0).all()):
        raise BadState(f"{name} has entropies that are negative or not finite")
    _check_images(memory, name)
    if isinstance(memory, PBRS):
        _check_seen(memory, name)


def _check_images(memory: Memory, name: str) -> None:
    images = memory.images
    if memory.size and (images.ndim != 4 or len(images) != memory.capacity):
        raise BadState(f"{name} has images of shape {tuple(images.shape)} for {memory.capacity} samples")
    _check_finite([(f"{name} images", images[: memory.size])])


def _check_seen(memory: PBRS, name: str) -> None:
    for label, count in memory.seen.items():
        _check_count(label, f"{name} labels seen")
        _check_count(count, f"{name} samples seen of a class")
    for label, stored in enumerate(memory.counts.tolist()):
        if stored > memory.seen.get(label, 0):
            raise BadState(f"{name} holds {stored} samples of class {label}, and has seen {memory.seen.get(label, 0)}")


def _check_shift(shift: DomainShiftDetector, name: str) -> None:
    for count in ("seen", "begun"):
        _check_count(getattr(shift, count), f"{name} {count}")
    for values in (shift.waiting, shift.mean, shift.variance):
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise BadState(f"{name} holds image statistics that are no finite float64 numbers")
    if (shift.variance < 0).any():
        raise BadState(f"{name} has a variance below zero")


def _check_optimizer(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Check the types of the settings, and the shapes of what is kept for each parameter."""
    for group in optimizer.param_groups:
        for setting, made_with in optimizer.defaults.items():
            if not _alike(group.get(setting), made_with):
                raise BadState(f"{name} has the setting {setting} {group.get(setting)!r}")
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for parameter, values in optimizer.state.items():
        if id(parameter) not in known:
            raise BadState(f"{name} has values of a parameter that it does not train")
        if isinstance(optimizer, torch.optim.Adam) and not {"step", "exp_avg", "exp_avg_sq"} <= values.keys():
            raise BadState(f"{name} has only {sorted(values)} of a parameter")
        for key in values.keys() & _SHAPED:
            _check_moment(values[key], () if key == "step" else tuple(parameter.shape), f"{name} {key}")


_SHAPED = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}
"""What optimizers keep for a parameter, in its shape, but for the count of steps."""


def _alike(value: Any, other: Any) -> bool:
    """Whether a setting is of the kind of another: a finite number, a flag, or a tuple of them."""
    if isinstance(other, tuple):
        return isinstance(value, tuple) and len(value) == len(other) and all(map(_alike, value, other))
    if isinstance(other, float):
        return isinstance(value, int | float) and math.isfinite(value)
    return other is None or isinstance(value, type(other)) or value is None


def _check_moment(value: Any, shape: tuple[int, ...], name: str) -> None:
    if value is None and name.endswith("momentum_buffer"):  # of SGD before its first step
        return
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        found = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise BadState(f"{name} is {found} instead of a tensor of shape {shape}")
    _check_finite([(name, value)])
    if name.endswith(("step", "_sq")) and (value < 0).any():
        raise BadState(f"{name} is below zero")
