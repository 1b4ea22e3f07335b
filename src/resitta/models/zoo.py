"""Models by name: the paper's source networks, two without BatchNorm, timm's, torchvision's and the user's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from resitta.errors import UnknownName, near
from resitta.models.checkpoints import load_into
from resitta.models.external import Builder, build, find_function, find_timm, find_torchvision, from_function
from resitta.models.normalise import Normalised
from resitta.models.resnet import ResNet50
from resitta.models.resnet26gn import ResNet26GN
from resitta.models.resnext import ResNeXt29
from resitta.models.vit import VisionTransformer
from resitta.models.wide_resnet import WideResNet


@dataclass(frozen=True)
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
_AUGMIX_WRN = partial(WideResNet, depth=40, width=2, mean=_HALF, std=_HALF)
_R50 = "ResNet-50, RobustBench 'Standard_R50' (torchvision's V1 weights)"
_ENTRIES = (
    ModelEntry("wrn28x10", partial(WideResNet, depth=28, width=10), 10, 32, "WRN-28-10, RobustBench 'Standard'", 1),
    ModelEntry("wrn16x4", partial(WideResNet, depth=16, width=4), 10, 32, "WRN-16-4, 7 % of the size of WRN-28-10"),
    ModelEntry("wrn16x1", partial(WideResNet, depth=16, width=1), 10, 32, "WRN-16-1, small enough for a CPU"),
    ModelEntry("wrn40x2", _AUGMIX_WRN, 10, 32, "WRN-40-2, RobustBench 'Hendrycks2020AugMix_WRN'"),
    ModelEntry("resnext29", ResNeXt29, 100, 32, "ResNeXt-29 4×32, RobustBench 'Hendrycks2020AugMix_ResNeXt'", 2),
    ModelEntry("resnet50", ResNet50, 1000, 224, _R50, 3),
    ModelEntry("resnet26gn", ResNet26GN, 10, 32, "ResNet-26 with GroupNorm, small enough for a CPU"),
    ModelEntry("vit_cifar", VisionTransformer, 10, 32, "ViT with LayerNorm: patch 4, width 192, 9 blocks, 3 heads"),
)
MODELS = {entry.name: entry for entry in _ENTRIES}
_LIBRARIES = {"timm": find_timm, "torchvision": find_torchvision}


def list_models() -> list[str]:
    """Return the names of the built-in models; `MODELS[name]` is what is known of each.

    >>> list_models()
    ['wrn28x10', 'wrn16x4', 'wrn16x1', 'wrn40x2', 'resnext29', 'resnet50', 'resnet26gn', 'vit_cifar']
    """
    return list(MODELS)


def create(name: str, checkpoint: str | Path | None = None, /, **options: object) -> nn.Module:
    """Build a model that takes images in [0, 1], load its checkpoint, and return it in eval mode.

    `name` is one of `list_models()`, `timm:NAME`, `torchvision:NAME`, or a function that returns
    a model: `package.module:function` or `path/to/file.py:function`. The options go to whatever builds it.

    >>> create("wrn16x1", classes=7).fc.out_features
    7
    >>> create("wrn28")
    Traceback (most recent call last):
        ...
    resitta.errors.UnknownName: no model 'wrn28'. Did you mean 'wrn28x10'?
    """
    model = find(name)(options)
    if checkpoint is not None:
        load_into(model, checkpoint)
    return model.eval()


def find(name: str) -> Builder:
    """Return what builds the model of a name from its options, or say that there is no such model."""
    library, colon, theirs = name.partition(":")
    if is_own_function(name):
        find_function(name)
        return partial(from_function, name)
    if colon:
        return _LIBRARIES[library](theirs)
    if name not in MODELS:
        raise UnknownName(f"no model '{name}'. {near(name, MODELS)}")
    entry = MODELS[name]
    return lambda options: build(entry.factory, {"classes": entry.classes, **options}, name=name)


def is_own_function(name: str) -> bool:
    """Whether a model is named by a function: `package.module:function` or `path/to/file.py:function`.

    >>> is_own_function("mine.py:make"), is_own_function("timm:resnet18"), is_own_function("wrn16x1")
    (True, False, False)
    """
    library, colon, _ = name.partition(":")
    return bool(colon) and library not in _LIBRARIES


def why_untrained(
    name: str, checkpoint: str | Path | None, options: Mapping[str, object], model: nn.Module | None = None
) -> str | None:
    """Say why a model has random weights and what to do about it; None if it appears to be trained.

    A checkpoint is trusted, and so is a function of the user's own, which may load weights itself. Models of timm and
    torchvision have weights when asked for them; with another number of classes than they were trained for, timm makes
    a new last layer. That is seen only in the `model` itself.

    >>> why_untrained("wrn16x1", None, {})
    'wrn16x1 has random weights; give it a checkpoint (--checkpoint)'
    >>> why_untrained("timm:resnet18", None, {"pretrained": True})
    """
    library, colon, _ = name.partition(":")
    if checkpoint is not None or is_own_function(name):
        return None
    if not colon:
        return f"{name} has random weights; give it a checkpoint (--checkpoint)"
    asked = {"timm": ("pretrained", "checkpoint_path"), "torchvision": ("weights", "pretrained")}[library]
    if not any(options.get(key) for key in asked):
        remedy = "pretrained=true" if library == "timm" else "weights=DEFAULT"
        return f"{name} has random weights; give it {remedy} (--model-set) or a checkpoint (--checkpoint)"
    return _new_last_layer(name, options, model)


def _new_last_layer(name: str, options: Mapping[str, object], model: nn.Module | None) -> str | None:
    inner = model.model if isinstance(model, Normalised) else model
    trained = (getattr(inner, "pretrained_cfg", None) or {}).get("num_classes")
    wanted = options.get("num_classes", trained)
    if trained is None or wanted == trained or options.get("checkpoint_path"):
        return None
    reason = f"the last layer of {name} has random weights, since its pretrained weights know {trained} classes"
    return f"{reason} and num_classes is {wanted}; give it a checkpoint trained on your classes"
