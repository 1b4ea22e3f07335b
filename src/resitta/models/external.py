"""Models from elsewhere: timm, torchvision, or a function of the user's own.

timm and torchvision are imported only when a model of theirs is asked for. Their models expect normalised
images; they come back wrapped in `Normalised`, so that they take images in [0, 1] like all others.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from resitta.errors import BadSetting, MissingExtra, UnknownName, UnsuitableModel, near
from resitta.installing import install
from resitta.models.normalise import Normalised


def from_timm(name: str, options: Mapping[str, object]) -> nn.Module:
    """Build timm's model `name`; the options, such as `pretrained=True`, go to `timm.create_model`."""
    timm = _import("timm")
    if not timm.is_model(name):
        raise UnknownName(f"timm has no model '{name}'. {near(name, timm.list_models())}")
    model = timm.create_model(name, **options)
    return Normalised(model, mean=model.pretrained_cfg["mean"], std=model.pretrained_cfg["std"])


def from_torchvision(name: str, options: Mapping[str, object]) -> nn.Module:
    """Build torchvision's classifier `name`; the options, such as `weights="DEFAULT"`, go to `get_model`.

    Mean and std are those of the weights asked for, else of the model's default weights.
    """
    models = _import("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise UnknownName(f"torchvision has no classifier '{name}'. {near(name, known)}")
    published = models.get_model_weights(name)
    preprocessing = (published.verify(options.get("weights")) or published.DEFAULT).transforms()
    model = models.get_model(name, **options)
    return Normalised(model, mean=preprocessing.mean, std=preprocessing.std)


def from_function(spec: str, options: Mapping[str, object]) -> nn.Module:
    """Call the user's `package.module:function` or `path/to/file.py:function`, which returns a model.

    >>> from_function("torch.nn:Linear", {"in_features": 2, "out_features": 1})
    Linear(in_features=2, out_features=1, bias=True)
    """
    place, _, attribute = spec.rpartition(":")
    module = _load_file(Path(place).expanduser()) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, attribute):
        raise UnknownName(f"{place} has no function '{attribute}'. {near(attribute, _public(module))}")
    model = build(getattr(module, attribute), options, name=spec)
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(f"{spec} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def build(function: Callable[..., nn.Module], options: Mapping[str, object], *, name: str) -> nn.Module:
    """Call a function that makes a model, once the options are known to fit its parameters.

    >>> build(nn.ReLU, {"width": 3}, name="relu")
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: relu: got an unexpected keyword argument 'width'; it takes inplace
    """
    if not callable(function) or isinstance(function, nn.Module):
        raise UnsuitableModel(f"{name} is a {type(function).__name__}; name a function that returns a model")
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "no options"
        raise BadSetting(f"{name}: {error}; it takes {taken}") from None
    return function(**options)


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        command = install(*(("timm", "torchvision") if package == "timm" else ("torchvision",)))
        raise MissingExtra(f"{package} cannot be imported: {error.name} is not installed; run: {command}") from error
    except (ImportError, RuntimeError) as error:
        # A torchvision built for another torch fails at import with RuntimeError.
        raise MissingExtra(
            f"{package} does not work with torch {torch.__version__} ({error}); "
            f"run: {install('torch', 'torchvision', upgrade=True)}"
        ) from error


def _load_module(name: str) -> ModuleType:
    remedy = "install it, or name its file: path/to/file.py:function"
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownName(f"'{name}' is not the name of a Python module; {remedy}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise UnknownName(f"no module named '{name}' to take a model from; {remedy}") from None
        raise


def _load_file(path: Path) -> ModuleType:
    # A name of its own keeps a file called random.py from hiding the standard library's.
    name = f"resitta_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UnknownName(f"no file {path} to take a model from; correct the path")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _public(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
