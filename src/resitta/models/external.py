"""External models: timm, torchvision, or a function of the user's own.

timm and torchvision are imported on first use. Their models expect normalised images; they are wrapped in
`Normalised`, so that they take images in [0, 1] like all others.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from resitta.errors import BadSetting, MissingExtra, UnknownName, UnsuitableModel, install, near
from resitta.models.normalise import Normalised
from resitta.models.user_code import load_file

Builder = Callable[[Mapping[str, object]], nn.Module]
"""Makes a model of the options given for it."""


def find_timm(name: str) -> Builder:
    """Find timm's model `name`; its options, such as `pretrained=True`, go to `timm.create_model`."""
    timm = _import("timm")
    if not timm.is_model(name):
        raise UnknownName(f"timm has no model '{name}'. {near(name, timm.list_models())}")

    def make(options: Mapping[str, object]) -> nn.Module:
        with _trouble_with(f"timm:{name}", options):
            model = timm.create_model(name, **options)
        return Normalised(model, mean=model.pretrained_cfg["mean"], std=model.pretrained_cfg["std"])

    return make


def find_torchvision(name: str) -> Builder:
    """Find torchvision's classifier `name`; its options, such as `weights="DEFAULT"`, go to `get_model`.

    Mean and std are those of the weights asked for, else of the model's default weights.
    """
    models = _import("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise UnknownName(f"torchvision has no classifier '{name}'. {near(name, known)}")

    def make(options: Mapping[str, object]) -> nn.Module:
        published = models.get_model_weights(name)
        with _trouble_with(f"torchvision:{name}", options):
            preprocessing = (published.verify(options.get("weights")) or published.DEFAULT).transforms()
            model = models.get_model(name, **options)
        return Normalised(model, mean=preprocessing.mean, std=preprocessing.std)

    return make


def from_function(spec: str, options: Mapping[str, object]) -> nn.Module:
    """Call the user's `package.module:function` or `path/to/file.py:function`, which returns a model.

    >>> from_function("torch.nn:Linear", {"in_features": 2, "out_features": 1})
    Linear(in_features=2, out_features=1, bias=True)
    """
    _, function = find_function(spec)
    model = build(function, options, name=spec)
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(f"{spec} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def find_function(spec: str) -> tuple[ModuleType, Callable[..., nn.Module]]:
    """Find the user's function and the module it is taken from."""
    place, _, attribute = spec.rpartition(":")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, attribute):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UnknownName(f"{place} has no function '{attribute}'. {near(attribute, public)}")
    return module, getattr(module, attribute)


def build(function: Callable[..., nn.Module], options: Mapping[str, object], *, name: str) -> nn.Module:
    """Call a function that makes a model, once the options are known to fit its parameters."""
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


def _load_file(place: str) -> ModuleType:
    if not Path(place).expanduser().is_file():
        raise UnknownName(f"no file {place} to take a model from; correct the path")
    return load_file(place)


@contextmanager
def _trouble_with(name: str, options: Mapping[str, object]) -> Iterator[None]:
    """Say which model could not be built with which options, and the library's reason."""
    try:
        yield
    except (TypeError, ValueError, KeyError, RuntimeError, OSError) as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BadSetting(f"{name} cannot be built with {given} ({reason}); correct the options of the model") from error
