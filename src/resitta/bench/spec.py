"""How to open a bench: a model and images, best by name, so that they travel to other processes and machines."""

import copy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resitta.adapter import adapt
from resitta.bench.loop import Progress
from resitta.bench.protocol import Protocol, open_domains
from resitta.bench.runner import Bench
from resitta.bench.sources import model_source
from resitta.data.datasets import ImageSet
from resitta.errors import BadSetting
from resitta.models import create as create_model
from resitta.models import why_untrained
from resitta.user_code import with_files


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model and data. By name they are opened by each process itself; image sets are then mapped from disk.

    `model_options`: pairs for the function that makes the model. `size`: the side that images of a folder or zip are
    resized to. `listing`: a text file that picks images of ImageNet-C. `folder`: where relative paths begin. A module
    is used as it is; on another device, a copy of it.
    """

    protocol: Protocol
    model: str | nn.Module
    data: Path | ImageSet
    checkpoint: Path | None = None
    model_options: tuple[tuple[str, Any], ...] = ()
    size: int | None = None
    listing: Path | None = None
    out: Path
    device: str = "cpu"
    folder: Path = field(default_factory=Path.cwd)
    source: dict[str, str | None] | None = field(default=None, compare=False, repr=False)
    """What the identity says of the code of a module, as seen by the process that has it."""

    def __post_init__(self) -> None:
        by_name = {"checkpoint": self.checkpoint, "model_options": self.model_options or None}
        given = [name for name, value in by_name.items() if value is not None]
        if isinstance(self.model, nn.Module) and given:
            raise BadSetting(f"{given[0]} belongs to a model given by name; a torch.nn.Module is used as it is")
        if not isinstance(self.data, Path) and self.listing is not None:
            raise BadSetting("a listing belongs to ImageNet-C on disk; choose among arrays and image sets yourself")
        if not isinstance(self.data, Path) and self.size is not None:
            raise BadSetting("size belongs to images on disk; scale arrays and image sets of your own yourself")

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.model.modules() if isinstance(self.model, nn.Module) else ()
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)} | {"source": self.model_source}
        return with_files(type(self), values, self.data, *parts)

    @property
    def model_source(self) -> dict[str, str | None]:
        """What the identity says of the code of the model."""
        by_name = isinstance(self.model, str)
        return self.source if self.source is not None and not by_name else model_source(self.model)

    def open(self, progress: Progress | None = None) -> Bench:
        """Load the model and open the data; clean images are corrupted now, unless they have been before."""
        device = usable_device(self.device)
        model, about, untrained = self._model(device)
        given = {"size": self.size, "listing": self.listing}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        check = partial(check_classes, model, device)
        places: dict[str, Any] = {"cache": self.out / "corrupted", "device": device}
        sets = open_domains(self.protocol, self.data, **places, progress=progress, check=check, **options)
        warning = f"{untrained}. Errors of an untrained network say nothing about methods." if untrained else ""
        return Bench(self.protocol, model, sets, self.out, device, about, warning=warning)

    def _model(self, device: torch.device) -> tuple[nn.Module, dict[str, Any], str | None]:
        """The model on its device, what the identity says of it, and why it is untrained if it is."""
        data = self.data.name if isinstance(self.data, Path) else type(self.data).__name__
        checkpoint, options = self.checkpoint, dict(self.model_options)
        about: dict[str, Any] = {"checkpoint": checkpoint and checkpoint.name, "data": data, **self.model_source}
        if isinstance(self.model, nn.Module):
            there = device_of(self.model) == device
            model = self.model if there else copy.deepcopy(self.model).to(device)
            return model, {"model": type(self.model).__qualname__, **about}, None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # what is not trained is the same in every process
            model = create_model(self.model, checkpoint, **options).to(device)
        about = {"model": self.model, **about, **({"model_options": options} if options else {})}
        untrained = why_untrained(self.model, checkpoint, options, model)
        return model, about | ({"untrained": True} if untrained else {}), untrained


def check_classes(model: nn.Module, device: torch.device, images: ImageSet) -> None:
    """Refuse a model whose number of classes is not that of the images, by its logits for one of them.

    With fewer classes in the data most labels would be wrong without a word: the class of an image is the place of its
    folder among the sorted names, so a part of the folders gives other numbers than all of them.
    """
    logits = adapt(model, "source")(images.read([0]).to(device).float() / 255).shape[1]
    if logits == images.classes:
        return
    remedy = f"make the model for {images.classes} (--model-set num_classes=... or classes=..., with such a checkpoint)"
    if images.classes < logits:
        remedy += f", or give the images of all {logits}; arrays of a part: ArrayImages(x, y, classes={logits})"
    raise BadSetting(f"the model has {logits} classes, the images have {images.classes}: {remedy}")


def usable_device(name: str) -> torch.device:
    """Return a device by name, or say why it cannot be used.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadSetting(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device


def device_of(model: nn.Module) -> torch.device:
    """Where a model is.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
