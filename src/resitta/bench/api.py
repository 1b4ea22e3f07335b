"""`resitta.bench.run`: compare methods on a model and images, from Python."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from resitta.bench.executors import Executor, run_jobs
from resitta.bench.loop import Progress
from resitta.bench.protocol import Course, OrderName, Protocol
from resitta.bench.record import Records
from resitta.bench.runner import BenchSpec, Job, device_of
from resitta.data.corruptions import CORRUPTIONS
from resitta.data.datasets import ArrayImages, ImageSet, holds_corruptions
from resitta.data.orders import WithinSlot
from resitta.errors import BadData, BadSetting, UnknownName, near
from resitta.method import Method, create, get_method, list_methods, takes_source
from resitta.models.user_code import load_method
from resitta.names import METHODS

Arrays = tuple[npt.NDArray[Any] | Tensor, npt.ArrayLike | Tensor]
"""Images, N×H×W×3 or N×3×H×W, uint8 or floats in [0, 1], and their labels."""


def run(
    model: str | nn.Module,
    images: str | Path | ImageSet | Arrays,
    methods: Sequence[str | Method] = ("source", "bn", "tent", "rotta", "resitta"),
    *,
    seeds: Sequence[int] = (1,),
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    severity: int = 5,
    order: OrderName = "ptta",
    delta: float = 0.1,
    within_slot: WithinSlot = "blocks",
    course: Course = "once",
    visits: int = 1,
    per_domain: int | None = None,
    batch_size: int = 64,
    corruption_seed: int = 0,
    checkpoint: str | Path | None = None,
    model_options: Mapping[str, Any] | None = None,
    size: int | None = None,
    listing: str | Path | None = None,
    source: str | Path | ImageSet | Arrays | None = None,
    source_images: int = 2000,
    out: str | Path | None = None,
    rerun: bool = False,
    device: str | None = None,
    threads: int | None = None,
    engine: Literal["local", "processes", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> Records:
    """Run every method with every seed on a stream made of the images, and return the records.

    Args:
        model: a `torch.nn.Module`, used as it is, or a name as on the command line: `wrn28x10`, `timm:NAME`,
            `torchvision:NAME`, `package.module:function`, `path/to/file.py:function`.
        images: a path as on the command line, an `ImageSet`, or arrays `(images, labels)`.
        methods: names, `path/to/file.py:name`, "all" (that can run: where only corrupted images are, none that needs
            source data), or instances such as `methods.ResiTTA(eta=0.05)`.
        seeds: one stream and one run per seed.
        preset, settings: of methods given by name: `{"lr": 1e-3, "resitta.eta": 0.05}`.
        corruptions, severity, order, delta, within_slot, course, visits, per_domain, batch_size, corruption_seed:
            the protocol; see `resitta.bench.protocol.Protocol`. "clean" among the corruptions stands for the images
            as they are.
        checkpoint, model_options: of a model given by name: `{"pretrained": True}`.
        size: the side that images of a folder or zip are resized to.
        listing: a text file with the images of ImageNet-C to use, `wnid/name.JPEG` on each line.
        source: what methods that need source data get, such as "eata": clean images, given as `images` are, or a file
            that `resitta prepare` wrote (NAME.safetensors). By default the images of this bench, if they are clean.
        source_images: how many of them to use, evenly chosen.
        out: the folder for records and corrupted images; finished runs in it are kept, unless the method or the model
            was defined in an interactive session, whose code cannot be compared. None keeps nothing.
        rerun: run again what is finished in `out`, and replace its records.
        device: by default that of the module, or the CPU.
        threads: of each run on the CPU. By default torch's own number; one in the workers of an engine.
        engine, workers, address: "processes" or "ray" run several jobs at a time; see `resitta.bench.executors`.
        progress: takes a title and returns a callback for `(done, total)`.

    >>> import numpy as np
    >>> from resitta.conformance import tiny_network
    >>> images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    >>> records = run(tiny_network(), (images, np.arange(40) % 5), ["source", "resitta"], corruptions=["fog", "snow"])
    >>> [(record.method, record.domains, record.samples) for record in records]
    [('source', ('fog', 'snow'), 80), ('resitta', ('fog', 'snow'), 80)]
    >>> print(records.table().splitlines()[0].split())
    ['Method', 'fog', 'snow', 'Avg']
    """
    given = locals()
    protocol = Protocol(**{field.name: given[field.name] for field in fields(Protocol)})
    where = Executor(name=engine, workers=workers, address=address, threads=threads)
    chosen = choose(methods, preset=preset, settings=settings)
    if ALL in methods and source is None and isinstance(images, str | Path) and holds_corruptions(images):
        chosen = [method for method in chosen if method.name in methods or not _lacks_source(method)]
    kept_in = tempfile.TemporaryDirectory(prefix="resitta-bench-") if out is None else nullcontext(str(out))
    with kept_in as folder, _threads(threads):
        spec = BenchSpec(
            protocol=protocol,
            model=model,
            data=image_source(images),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            model_options=tuple((model_options or {}).items()),
            size=size,
            listing=None if listing is None else Path(listing),
            clean=None if source is None else image_source(source),
            source_images=source_images,
            out=Path(folder),
            device=device or (str(device_of(model)) if isinstance(model, nn.Module) else "cpu"),
        )
        jobs = [Job(method=method, seed=seed) for method in chosen for seed in _seeds(seeds)]
        return run_jobs(spec, jobs, progress, where, rerun=rerun)


def image_source(images: str | Path | ImageSet | Arrays) -> Path | ImageSet:
    """A path, or images in memory as an image set.

    >>> image_source("photos")
    PosixPath('photos')
    >>> len(image_source((torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))))
    2
    """
    if isinstance(images, str | Path):
        return Path(images)
    if isinstance(images, tuple) and len(images) == 2:
        pixels, labels = (
            part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in images
        )
        return ArrayImages(pixels, labels)
    if not isinstance(images, tuple) and all(hasattr(images, name) for name in ("read", "labels", "classes")):
        return images
    found = f"found a {type(images).__name__}"
    raise BadData(f"images are a path, an image set, or a pair of arrays (images, labels); {found}")


def _seeds(seeds: Sequence[int]) -> list[int]:
    if isinstance(seeds, int) or not len(seeds):
        raise BadSetting(f"seeds takes a list of whole numbers such as [1, 2, 3], found {seeds!r}")
    return list(seeds)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ALL = "all"
"""Stands for every registered method."""


def choose(
    methods: Sequence[str | Method], *, preset: str | None = None, settings: Mapping[str, Any] | None = None
) -> list[Method]:
    """Make the methods of a bench, each once. Instances are taken as they are: preset and settings go to names.

    >>> [type(method).__name__ for method in choose(["tent", "all"])][:3]
    ['Tent', 'Source', 'BatchNormAdapt']
    >>> choose(["resitta"], settings={"lr": 0.01, "resitta.eta": 0.05})[0].eta
    0.05
    """
    if isinstance(methods, str | Method):
        raise BadSetting(f"methods takes a list such as ['source', 'resitta'], found {methods!r}")
    loaded = [load_method(method) if isinstance(method, str) else method for method in methods]
    names = named(loaded)
    values = by_method(settings or {}, [name for name in names if isinstance(name, str)])
    made = [create(name, preset=preset, **values[name]) if isinstance(name, str) else _checked(name) for name in names]
    if not made:
        raise BadSetting("a bench needs at least one method; `resitta methods` lists them")
    return list(dict.fromkeys(made))


def named(methods: Sequence[str | Method]) -> list[str | Method]:
    """Replace "all" by the paper's methods, in its order, and the others that are registered."""
    every = [*METHODS, *(name for name in list_methods() if name not in METHODS)]
    return list(dict.fromkeys(one for method in methods for one in (every if method == ALL else [method])))


def by_method(settings: Mapping[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sort `key` and `method.key` by method; a plain key goes to every method that has it.

    >>> by_method({"lr": 0.01, "resitta.eta": 0.05}, ["tent", "resitta"])
    {'tent': {'lr': 0.01}, 'resitta': {'lr': 0.01, 'eta': 0.05}}
    """
    known = {name: [*(field.name for field in fields(get_method(name))), *get_method(name).renamed] for name in methods}
    found: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for place, value in settings.items():
        method, _, key = place.rpartition(".")
        takers = [name for name in methods if key in known[name] and method in ("", name)]
        if not takers:
            every = [f"{name}.{k}" for name, keys in known.items() for k in keys]
            raise UnknownName(f"no method of this bench has the setting {place!r}. {near(place, every)}")
        for name in takers:
            found[name][key] = value
    return found


def _lacks_source(method: Method) -> bool:
    return takes_source(method) and vars(method)["source"] is None


def _checked(method: Method) -> Method:
    if not isinstance(method, Method):
        raise BadSetting(f"a method is a name or an instance such as methods.Tent(), found a {type(method).__name__}")
    if not method.name:
        kind = type(method).__name__
        raise BadSetting(f"{kind} has no name to report it by; put @resitta.register('my-name') above the class")
    return method
