"""Models by name: the paper's source networks, timm's, torchvision's and the user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from resitta.errors import UnknownName, near
from resitta.models.checkpoints import load_into
from resitta.models.external import build, from_function, from_timm, from_torchvision
from resitta.models.resnet import ResNet50
from resitta.models.resnext import ResNeXt29
from resitta.models.wide_resnet import WideResNet


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """What is known of a named model; listings show it."""

    name: str
    factory: Callable[..., nn.Module]
    classes: int
    image_size: int
    description: str
    table: int | None = None
    """The paper's table that uses it as source network."""


_HALF = (0.5, 0.5, 0.5)
_ENTRIES = (
    ModelEntry(
        name="wrn28x10",
        factory=partial(WideResNet, depth=28, width=10),
        classes=10,
        image_size=32,
        description="WRN-28-10, RobustBench 'Standard'",
        table=1,
    ),
    ModelEntry(
        name="wrn16x4",
        factory=partial(WideResNet, depth=16, width=4),
        classes=10,
        image_size=32,
        description="WRN-16-4, 7 % of the size of WRN-28-10",
    ),
    ModelEntry(
        name="wrn16x1",
        factory=partial(WideResNet, depth=16, width=1),
        classes=10,
        image_size=32,
        description="WRN-16-1, small enough for a CPU",
    ),
    ModelEntry(
        name="wrn40x2",
        factory=partial(WideResNet, depth=40, width=2, mean=_HALF, std=_HALF),
        classes=10,
        image_size=32,
        description="WRN-40-2, RobustBench 'Hendrycks2020AugMix_WRN'",
    ),
    ModelEntry(
        name="resnext29",
        factory=ResNeXt29,
        classes=100,
        image_size=32,
        description="ResNeXt-29 4×32, RobustBench 'Hendrycks2020AugMix_ResNeXt'",
        table=2,
    ),
    ModelEntry(
        name="resnet50",
        factory=ResNet50,
        classes=1000,
        image_size=224,
        description="ResNet-50, RobustBench 'Standard_R50' (torchvision's V1 weights)",
        table=3,
    ),
)
MODELS = {entry.name: entry for entry in _ENTRIES}
_LIBRARIES = {"timm": from_timm, "torchvision": from_torchvision}


def list_models() -> list[str]:
    """Return the names of the built-in models; `MODELS[name]` is what is known of each.

    >>> list_models()
    ['wrn28x10', 'wrn16x4', 'wrn16x1', 'wrn40x2', 'resnext29', 'resnet50']
    """
    return list(MODELS)


def create(name: str, checkpoint: str | Path | None = None, **options: object) -> nn.Module:
    """Build a model that takes images in [0, 1], load its checkpoint, and return it in eval mode.

    `name` is one of `list_models()`, `timm:NAME`, `torchvision:NAME`, or a function of yours that returns
    a model: `package.module:function` or `path/to/file.py:function`. The options go to whatever builds it.

    >>> create("wrn16x1", classes=7).fc.out_features
    7
    >>> create("wrn28")
    Traceback (most recent call last):
        ...
    resitta.errors.UnknownName: no model 'wrn28'. Did you mean 'wrn28x10'?
    """
    model = _make(name, options)
    if checkpoint is not None:
        load_into(model, checkpoint)
    return model.eval()


def _make(name: str, options: dict[str, object]) -> nn.Module:
    library, colon, theirs = name.partition(":")
    if library in _LIBRARIES and colon:
        return _LIBRARIES[library](theirs, options)
    if colon:
        return from_function(name, options)
    if name not in MODELS:
        raise UnknownName(f"no model '{name}'. {near(name, MODELS)}")
    entry = MODELS[name]
    return build(entry.factory, {"classes": entry.classes} | options, name=name)
