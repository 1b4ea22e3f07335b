"""A benchmark: a model, the domains of a protocol, one record per method and seed; finished runs are kept."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.bench.loop import Progress, run_stream
from resitta.bench.protocol import Domain, Protocol, open_domains
from resitta.bench.record import RunRecord, environment, identity_in, load, read_json, save, settings_of, write_json
from resitta.bench.source_data import SourceData
from resitta.bench.source_digest import described, method_source, model_source
from resitta.checkpoint.fingerprint import digest_tensors
from resitta.data.corrupted import fingerprint
from resitta.data.datasets import ImageSet
from resitta.errors import BadData, BadSetting
from resitta.method import Method, takes_source
from resitta.models import create as create_model
from resitta.models import why_untrained
from resitta.models.user_code import with_files
from resitta.training.source_statistics import SourceStatistics


@dataclass(frozen=True, kw_only=True)
class Job:
    """A requested run: a method with its settings, and a seed. Methods of a user's file can be pickled too.

    `source` is the digest of the method's source in the process that made the job.
    """

    method: Method
    seed: int
    source: str | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The method and the settings that are not its defaults, nor chosen by the bench."""
        values = [(setting, getattr(self.method, setting.name)) for setting in fields(self.method)]
        chosen = [(setting.name, value) for setting, value in values if value != setting.default]
        changed = [f"{name}={described(value)}" for name, value in chosen if not _from_bench(value)]
        return ", ".join([self.method.name, *changed])

    @property
    def title(self) -> str:
        """What a progress bar says: the label and the seed."""
        return f"{self.label}, seed {self.seed}"

    @property
    def method_source(self) -> str | None:
        """The digest of the method's source; None if there is no file to compare."""
        return self.source or method_source(type(self.method))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {"method": self.method, "seed": self.seed, "source": self.method_source}
        return with_files(type(self), values, self.method, *vars(self.method).values())


def _from_bench(value: object) -> bool:
    return isinstance(value, SourceStatistics) and value.origin != ""


@dataclass(frozen=True)
class Bench:
    """A model and the domains of a protocol, ready to run jobs. Records go into the folder `out`."""

    protocol: Protocol
    model: nn.Module
    sets: dict[Domain, ImageSet]
    out: Path
    device: torch.device
    about: dict[str, Any]
    """What else defines the runs: the names of the model, its checkpoint and the data, and what is known of them."""
    options: dict[str, Any] = field(default_factory=dict)
    """How adapters are made, beside their method and seed: `precision` and the like."""
    circumstances: dict[str, Any] = field(default_factory=dict)
    """What explains the runs' speed without changing their numbers, such as other processes on the device."""
    warning: str = ""
    """Printed before and after the runs, such as that the weights are random."""
    source: SourceData | None = None
    """Where methods that need source data get it."""

    def with_source(self, method: Method, bar: Callable[[str], Progress] | None = None) -> Method:
        """Return a method with the statistics of source data that it needs; they are computed now, or kept."""
        if self.source is None or not takes_source(method) or isinstance(vars(method)["source"], SourceStatistics):
            return method
        progress = bar(f"source data of {method.name}") if bar else lambda _done, _total: None
        code = method_source(type(method)), self.about.get("model_source", "")
        known = [method.name, settings_of(method), self.about, code, weights_digest(self.model)]
        digest = None if None in code else partial(_digest_with, known)
        complete = self.source.complete(method, self.model, digest, progress)
        progress(1, 1)
        return complete

    def path(self, job: Job) -> Path:
        """The file of a job's record; its name holds a digest of all that defines the run."""
        return self.out / f"{job.method.name}-{job.seed}-{identity_digest(self.identity(job))}.json"

    def identity(self, job: Job) -> dict[str, Any]:
        """Everything that defines a run, down to the pixels, the weights and the source code.

        `version` is the library's; `method_source` covers the method's own files (see `resitta.bench.source_digest`),
        `about` the source of a model of the user's own. A change in another file of the library shows in its version.
        """
        import resitta  # noqa: PLC0415  (the version lives in the package itself)

        return {
            "version": resitta.__version__,
            "protocol": asdict(self.protocol),
            "method": job.method.name,
            "method_source": job.method_source,
            "settings": settings_of(job.method),
            "seed": job.seed,
            "weights": weights_digest(self.model),
            "images": [fingerprint(images) for images in self.sets.values()],
            **self.options,
            **self.about,
        }

    def finished(self, job: Job) -> bool:
        """Whether a job has a valid record; never if its code is not in a file and so cannot be compared."""
        return self._comparable(job) and self.path(job).exists()

    def record(self, job: Job, progress: Progress | None = None, *, rerun: bool = False) -> RunRecord:
        """Return the record of a job: from its file if it is finished, else by running it."""
        job = replace(job, method=self.with_source(job.method))
        path = self.path(job)
        if rerun or not self._comparable(job) or not path.exists():
            adapter = Adapter(self.model, job.method, seed=job.seed, **self.options)
            stream = self.protocol.stream(self.sets, job.seed)
            result = run_stream(adapter, stream, batch_size=self.protocol.batch_size, progress=progress)
            surroundings = environment(self.device) | self.circumstances
            save(path, result, **self.identity(job), environment=surroundings)
        elif progress:
            progress(1, 1)
        return load(path)

    def keep(self, job: Job, content: dict[str, Any]) -> RunRecord:
        """Write the content of a record that another process made, unless its file is already here."""
        ours, theirs = self.identity(job), identity_in(content) | {"seed": content["seed"]}
        if identity_digest(ours) != identity_digest(theirs):
            differ = [key for key in ours if identity_digest(ours[key]) != identity_digest(theirs.get(key))]
            reason = f"its {', '.join(differ) or 'identity'} was not the same in the worker"
            advice = "give the same command again and leave the files as they are"
            raise BadData(f"{job.title} is not the requested run: {reason}; {advice}")
        path = self.path(job)
        if not path.exists() or read_json(path) != content:  # the worker's disk is not ours
            write_json(path, content)
        return load(path)

    def _comparable(self, job: Job) -> bool:
        """Whether the method and the model are defined in files, which can be compared."""
        return None not in (job.method_source, self.about.get("model_source", ""))


def identity_digest(identity: Any, length: int = 12) -> str:
    """A short digest of everything that defines a run, or of any part of it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:length]


def _digest_with(known: Any, more: Any) -> str:
    return identity_digest([known, more])


def weights_digest(model: nn.Module) -> str:
    """A short digest of a model's weights."""
    return digest_tensors(model.state_dict().items(), types=False)[:12]


@dataclass(frozen=True, kw_only=True)
class BenchSpec:
    """A model and data. By name they are opened by each process itself; image sets are then mapped from disk.

    `model_options`: pairs for the function that makes the model. `size`: the side that images of a folder or zip are
    resized to. `listing`: a text file that picks images of ImageNet-C. `folder`: where relative paths begin. A module
    is used as it is; on another device, a copy of it. `clean` and `source_images`: what methods that need source data
    get, see `SourceData`.
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
    clean: Path | ImageSet | None = None
    source_images: int = 2000
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
        if type(self.source_images) is not int or self.source_images < 1:
            raise BadSetting(f"source_images must be a whole number from 1 on, found {self.source_images!r}")

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
        """Load the model and open the data; clean images are corrupted now, unless they are cached."""
        device = usable_device(self.device)
        model, about, untrained = self._model(device)
        given = {"size": self.size, "listing": self.listing}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        check = partial(check_classes, model, device)
        places: dict[str, Any] = {"cache": self.out / "corrupted", "device": device}
        sets = open_domains(self.protocol, self.data, **places, progress=progress, check=check, **options)
        warning = f"{untrained}. Errors of an untrained network say nothing about methods." if untrained else ""
        return Bench(self.protocol, model, sets, self.out, device, about, warning=warning, source=self._source_data())

    def _source_data(self) -> SourceData:
        return SourceData(
            data=self.data,
            cache=self.out / "source",
            given=self.clean,
            count=self.source_images,
            size=self.protocol.batch_size,
            options={} if self.size is None else {"size": self.size},
        )

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

    With fewer classes in the data most labels would be silently wrong: the class of an image is the place of its
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
    """Return a device by name, or say why it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadSetting(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device


def device_of(model: nn.Module) -> torch.device:
    """Where a model is."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
