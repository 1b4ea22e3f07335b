"""The protocol of a run: one frozen record that, with a method and a seed, defines every number that comes out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resitta import names
from resitta.data.corrupted import corrupted, evenly
from resitta.data.corruptions import CORRUPTIONS, full_name
from resitta.data.datasets import ImageSet, holds_corruptions, open_images
from resitta.data.orders import WithinSlot, dirichlet, label_sorted, shuffled
from resitta.data.streams import Order, Stream, continual, mixed
from resitta.errors import BadSetting
from resitta.settings import check_settings, setting

OrderName = names.OrderName
Course = names.Course
GRADUAL = (1, 2, 3, 4, 5, 4, 3, 2, 1)
CLEAN = "clean"
"""Stands among the corruptions for the images as they are."""

Check = Callable[[ImageSet], None]
Domain = tuple[str, int]
"""A corruption and its severity."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a stream is made from images.

    `order`: how the images of a domain come: "ptta" (temporally correlated, by a Dirichlet distribution), "slots" (the
    same with images shuffled inside each time slot, whatever `within_slot` says), "sorted" by label, "iid", or "mixed"
    with all other domains. `course`: each corruption "once" at the severity, "gradual" with severities 1 to 5 and back,
    or "recurring" for a number of `visits`. `per_domain`: images of each domain, evenly chosen; None takes all.
    `corruption_seed` fixes corruptions made by us; it plays no part in sets read from disk.
    """

    corruptions: tuple[str, ...] = CORRUPTIONS
    severity: int = setting(5, at_least=1, at_most=5)
    order: OrderName = "ptta"
    delta: float = setting(0.1, above=0)
    within_slot: WithinSlot = "blocks"
    course: Course = "once"
    visits: int = setting(1, at_least=1)
    per_domain: int | None = setting(None, at_least=1)
    batch_size: int = setting(64, at_least=1)
    corruption_seed: int = setting(0, at_least=0)

    def __post_init__(self) -> None:
        names = tuple(name if name == CLEAN else full_name(name) for name in self.corruptions)
        object.__setattr__(self, "corruptions", names)
        check_settings(self)
        if not self.corruptions:
            raise BadSetting("a protocol needs at least one corruption")

    def domains(self) -> list[Domain]:
        """The domains in the order of the stream; one that returns is listed again.

        >>> Protocol(corruptions=("fog", "snow"), course="recurring", visits=2).domains()
        [('fog', 5), ('snow', 5), ('fog', 5), ('snow', 5)]
        """
        severities = GRADUAL if self.course == "gradual" else (self.severity,)
        once = [(name, severity) for name in self.corruptions for severity in severities]
        return once * self.visits

    def stream(self, sets: dict[Domain, ImageSet], seed: int) -> Stream:
        """Arrange image sets, one per domain, into the stream of a seed."""
        rng = np.random.default_rng(seed)
        domains = self.domains()
        names = [name if self.course != "gradual" else f"{name} {severity}" for name, severity in domains]
        images = [sets[domain] for domain in domains]
        if self.order == "mixed":
            return mixed(names, images, rng)
        orders: dict[str, Order] = {
            "ptta": partial(dirichlet, delta=self.delta, within_slot=self.within_slot),
            "slots": partial(dirichlet, delta=self.delta, within_slot="shuffled"),
            "sorted": lambda labels, _: label_sorted(labels),
            "iid": shuffled,
        }
        return continual(names, images, orders[self.order], rng)


def open_domains(
    protocol: Protocol,
    data: Path | ImageSet,
    *,
    cache: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    check: Check = lambda _: None,
    **options: Any,
) -> dict[Domain, ImageSet]:
    """Open every domain of a protocol: from a corrupted set on disk, or by corrupting clean images (cached).

    `check` is called on each set of images that is opened, before it is corrupted.
    """
    domains = dict.fromkeys(protocol.domains())
    folder = data if isinstance(data, Path) and holds_corruptions(data) else None
    if folder is None:
        clean = evenly(open_images(data, **options) if isinstance(data, Path) else data, protocol.per_domain)
        check(clean)
    sets: dict[Domain, ImageSet] = {}
    for done, (name, severity) in enumerate(domains, start=1):
        if folder is not None:
            images = open_images(folder, corruption=name, severity=severity, **options)
            check(images)
            images = evenly(images, protocol.per_domain)
        elif name == CLEAN:
            images = clean
        else:
            images = corrupted(clean, name, severity, cache, seed=protocol.corruption_seed, device=device)
        sets[name, severity] = images
        if progress:
            progress(done, len(domains))
    return sets
