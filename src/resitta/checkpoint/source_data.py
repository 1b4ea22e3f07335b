"""Statistics of source data: computed when an adapter is made, or once for all in a file of their own."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resitta.checkpoint.atomic_write import write_atomically
from resitta.checkpoint.fingerprint import Fingerprint
from resitta.checkpoint.format import read, seal
from resitta.errors import BadSetting, BadState
from resitta.method import Method, create, needs_of_methods, takes_source
from resitta.norm.requirements import check_model
from resitta.training.network import Network, Normalized, Output
from resitta.training.source_statistics import CheckedBatches, Progress, SourceImages, SourceStatistics, as_source

FORMAT = 1
KIND = "source_statistics"
"""The entry by which statistics are recognised in a file."""
StatisticsPath = str | os.PathLike[str]


def prepare(
    model: nn.Module,
    images: Tensor | Iterable[Any],
    method: str | Method,
    *,
    path: StatisticsPath | None = None,
    output: Output = None,
    normalized: Normalized | None = None,
    classes: int | None = None,
    progress: Progress | None = None,
) -> SourceStatistics:
    """Compute what a method needs to know of its source data, and write it to a file.

    Then `resitta.adapt(model, method, source=path)` needs no images. The statistics may also be passed as they are.

    Args:
        model: the source model.
        images: clean images, as the model was trained on: a tensor, or batches in random order, such as a DataLoader
            of tensors or (images, labels). Labels are not used. The first 5,000 images are read; 1,000 or 2,000 are
            enough. The batches of a loader should be of the size that the adapter will be called with.
        method: a method that takes `source`, by name or with its settings.
        path: the file to write.
        output, normalized, classes: as for `resitta.adapt`.
        progress: is called with (images so far, images at most).

    >>> prepare(nn.Linear(2, 2), torch.rand(8, 3, 8, 8), "tent")
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: tent needs no source data; leave out source=
    """
    chosen = create(method)
    if not takes_source(chosen):
        raise BadSetting(f"{chosen.name} needs no source data; leave out source=")
    check_model(model, needs=chosen.needs, name=chosen.name, others=needs_of_methods())
    source = as_source(images)
    if not isinstance(source, SourceImages):
        raise BadSetting(f"images must be clean images, found {images!r}")
    with torch.inference_mode(False):
        network = Network(model, output=output, normalized=normalized, classes=classes)
    found = computed(chosen, source, network, Fingerprint(network.model), progress)
    if path is not None:
        write_statistics(path, found)
    return found


def with_statistics(
    method: Method, network: Network, fingerprint: Fingerprint, progress: Progress | None = None
) -> Method:
    """Return the method with statistics as its `source`, computed from images or read from a file as need be."""
    if not takes_source(method):
        return method
    source = as_source(vars(method).get("source"))
    if source is None:
        raise BadSetting(_missing(method))
    if isinstance(source, SourceImages):
        found = computed(method, source, network, fingerprint, progress)
    else:
        found = source if isinstance(source, SourceStatistics) else read_statistics(source)
        _check_match(found, method, fingerprint)
    bound = found if found.model else dataclasses.replace(found, model=fingerprint.in_any_precision)
    return create(method, source=bound)


def computed(
    method: Method, source: SourceImages, network: Network, fingerprint: Fingerprint, progress: Progress | None = None
) -> SourceStatistics:
    """Let a method compute its statistics."""
    batches = CheckedBatches(source, network, progress)
    with torch.inference_mode(False), torch.enable_grad():
        tensors = method.prepare(network, batches)
    kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    return SourceStatistics(method.name, kept, batches.taken, fingerprint.in_any_precision)


def write_statistics(path: StatisticsPath, statistics: SourceStatistics) -> None:
    """Write statistics to a sealed file."""
    about = {"format": FORMAT, "model": statistics.model}
    write_atomically(Path(path), seal(about | packed(statistics)))


def read_statistics(path: StatisticsPath) -> SourceStatistics:
    """Read a file that `write_statistics` wrote."""
    document = read(Path(path))
    if KIND not in document:
        raise BadState(f"{path} holds no statistics of source data; make them with `resitta prepare MODEL IMAGES`")
    if document.get("format") != FORMAT:
        raise BadState(f"{path} has format {document.get('format')}, this version reads {FORMAT}; upgrade it")
    return unpacked(document, str(path), model=str(document.get("model")))


def packed(statistics: SourceStatistics) -> dict[str, Any]:
    """Statistics as a file holds them, without the model."""
    tensors = dict(statistics.tensors)
    return {KIND: statistics.method, "tensors": tensors, "images": statistics.images, "origin": statistics.origin}


def unpacked(found: Mapping[str, Any], path: str, *, model: str = "") -> SourceStatistics:
    """Undo `packed`; refuse what no method computes."""
    tensors, images = found.get("tensors"), found.get("images")
    named = isinstance(tensors, Mapping) and all(isinstance(tensor, Tensor) for tensor in tensors.values())
    if not named or type(images) is not int:
        raise BadState(f"{path} holds no statistics of source data that can be read; make them again")
    values = {str(name): tensor for name, tensor in dict(tensors or {}).items()}
    if any(tensor.is_floating_point() and not tensor.isfinite().all() for tensor in values.values()):
        raise BadState(f"{path} holds statistics of source data that are not finite; make them again")
    return SourceStatistics(str(found[KIND]), values, images, model, str(found.get("origin", "")))


def _check_match(statistics: SourceStatistics, method: Method, fingerprint: Fingerprint) -> None:
    remedy = f"make them with `resitta prepare MODEL IMAGES --for {method.name}`"
    if statistics.method != method.name:
        raise BadSetting(f"source holds statistics for {statistics.method}, {method.name} needs its own; {remedy}")
    if statistics.model and statistics.model != fingerprint.in_any_precision:
        raise BadSetting(f"source holds statistics of another model or of other weights; {remedy}")


def _missing(method: Method) -> str:
    ways = f"clean images, or a file that `resitta prepare MODEL IMAGES --for {method.name}` wrote"
    other = f"; {method.without_source!r} works without" if method.without_source else ""
    return f"{method.name} needs data of the source domain: pass source=, a tensor or DataLoader of {ways}{other}"
