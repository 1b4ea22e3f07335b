"""Which method for which model and stream: those that work on the model, with what was measured on a testbed like it.

The measurements are in `recommendations.json`, which `benchmarks/recommendations.py` makes from records.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import nn

from resitta.errors import ResittaError
from resitta.method import create, get_method, list_methods, takes_source
from resitta.names import Course, OrderName
from resitta.norm.affine_layers import affine_layers
from resitta.norm.bn_layers import BatchNorm, bn_layers
from resitta.norm.requirements import check_model
from resitta.settings import check_settings, setting
from resitta.training.network import Network

LABEL_ORDER = frozenset(("lame", "cofa"))
"""Methods that use the order of labels: they gain where neighbours in the stream share classes, and only there."""
PRIOR_SETTINGS = ("label_prior", "prior_correction")
"""Settings of other methods that do so unless they are "none"; ROID and CMF have a correction by default."""
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "BatchNorm": (BatchNorm,),
    "GroupNorm": (nn.GroupNorm,),
    "LayerNorm": (nn.LayerNorm, nn.RMSNorm),
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream in the words of a bench's protocol."""

    order: OrderName = "ptta"
    batch_size: int = setting(64, at_least=1)
    course: Course = "once"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Bed:
    """Images and a source network that methods were measured on."""

    name: str
    title: str
    normalisation: str
    classes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method on a testbed and a stream: the average error in per cent over seeds, and what it costs.

    `changed`: settings that are not those of the testbed's preset. `spread`: the standard deviation over seeds. `cost`:
    the time per image as a multiple of plain inference, with WRN-28-10 on an H200; None if not measured.
    """

    bed: str
    order: str
    course: str
    severity: int
    batch_size: int
    images: int
    domains: int
    method: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int]
    error: float
    spread: float | None = None
    cost: float | None = None

    @property
    def label(self) -> str:
        """The method and its changed settings."""
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.changed.items())])

    @property
    def uses_label_order(self) -> bool:
        """Whether it gains from neighbours that share classes."""
        usual = get_method(self.method) if self.method in list_methods() else None
        priors = [self.changed.get(name, getattr(usual, name, "none")) for name in PRIOR_SETTINGS]
        return self.method in LABEL_ORDER or any(prior != "none" for prior in priors)

    @property
    def setup(self) -> tuple[str, int, int, int]:
        """What cells must share to be compared on one testbed and order: course, severity, size of batches, images."""
        return self.course, self.severity, self.batch_size, self.images


@dataclass(frozen=True)
class Measurements:
    """All testbeds and cells."""

    beds: tuple[Bed, ...] = ()
    cells: tuple[Cell, ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Measurements":
        """Read what `benchmarks/recommendations.py` writes."""
        return cls(tuple(Bed(**bed) for bed in content["beds"]), tuple(Cell(**cell) for cell in content["cells"]))

    def on(self, bed: Bed | None, order: str) -> list[Cell]:
        """The cells of a testbed in an order."""
        return [cell for cell in self.cells if bed is not None and cell.bed == bed.name and cell.order == order]


@dataclass(frozen=True)
class Recommendation:
    """What is known for a model and a stream.

    `cells`: measurements of methods that work on the model, lowest error first. `unmeasured`: further methods that
    work. `unsuitable`: the other methods, with reasons.
    """

    normalisation: str
    classes: int
    stream: Stream
    bed: Bed | None
    cells: tuple[Cell, ...]
    unmeasured: tuple[str, ...]
    unsuitable: Mapping[str, str]

    @property
    def winner(self) -> Cell | None:
        """The lowest error without the order of labels."""
        return next((cell for cell in self.cells if not cell.uses_label_order), None)

    @property
    def ordered_winner(self) -> Cell | None:
        """The lowest error, if a method reaches it by the order of labels."""
        return self.cells[0] if self.cells and self.cells[0].uses_label_order else None


@cache
def measurements() -> Measurements:
    """The measurements that come with the package."""
    return Measurements.of(json.loads((resources.files(__package__) / "recommendations.json").read_text("utf-8")))


def recommend(
    model: nn.Module, stream: Stream, *, classes: int | None = None, measured: Measurements | None = None
) -> Recommendation:
    """Return which methods work on a model, and what was measured of them on the nearest testbed.

    >>> from resitta.conformance import tiny_network
    >>> found = recommend(tiny_network(), Stream(order="iid"), measured=Measurements())
    >>> found.normalisation, found.classes, found.winner, "tent" in found.unmeasured
    ('BatchNorm', 5, None, True)
    """
    network = Network(model, classes=classes)
    measured, kind = measured or measurements(), normalisation(model)
    reasons = {name: why_unsuitable(name, network) for name in list_methods()}
    bed = nearest(measured, kind, network.classes, stream)
    cells = [cell for cell in closest_setup(measured.on(bed, stream.order), stream) if cell.method in reasons]
    working = [cell for cell in cells if reasons[cell.method] is None]
    works = [name for name, reason in reasons.items() if reason is None]
    return Recommendation(
        kind,
        network.classes,
        stream,
        bed,
        tuple(sorted(working, key=lambda cell: cell.error)),
        tuple(name for name in works if name not in {cell.method for cell in working}),
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def normalisation(model: nn.Module) -> str:
    """The kind that most normalisation layers of a model have, in words.

    >>> normalisation(nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(2), nn.LayerNorm(2))), normalisation(nn.ReLU())
    ('LayerNorm', 'none')
    """
    layers = {id(layer): layer for _, layer in [*affine_layers(model), *bn_layers(model)]}.values()
    counts = {name: sum(isinstance(layer, kinds) for layer in layers) for name, kinds in KINDS.items()}
    counts["another kind"] = len(layers) - sum(counts.values())
    name = max(counts, key=lambda name: counts[name])
    return name if counts[name] else "none"


def why_unsuitable(name: str, network: Network) -> str | None:
    """Say why a method with its usual settings does not work on a network; None if it does."""
    method = get_method(name)
    try:
        check_model(network.model, needs=method.needs, name=name, others={})
        with torch.inference_mode(False):
            if takes_source(method):  # it works with source data, which is not at hand
                return None
            create(name).start(network, torch.Generator().manual_seed(0))
    except ResittaError as error:
        return str(error)
    return None


def nearest(measured: Measurements, kind: str, classes: int, stream: Stream) -> Bed | None:
    """The testbed of this normalisation, measured in this order if any is, with the most similar number of classes.

    Of equal ones it is that with the most measurements.
    """

    def distance(bed: Bed) -> tuple[bool, float, int]:
        cells = measured.on(bed, stream.order)
        return not cells, abs(math.log(bed.classes / classes)), -len(cells)

    return min((bed for bed in measured.beds if bed.normalisation == kind), key=distance, default=None)


def closest_setup(cells: Sequence[Cell], stream: Stream) -> list[Cell]:
    """The cells of one setup: of the stream's course if there is one, with the nearest size of batches, the longest."""

    def distance(cell: Cell) -> tuple[bool, float, int, int]:
        batches = abs(math.log(cell.batch_size / stream.batch_size))
        return cell.course != stream.course, batches, -cell.severity, -cell.images

    best = min(cells, key=distance, default=None)
    return [cell for cell in cells if best is not None and cell.setup == best.setup]
