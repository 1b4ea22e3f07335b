"""Tide: a temporal label prior, incremental statistics, a memory of domains, EntroBank."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadSetting
from resitta.memory.entrobank import RecentEntroBank
from resitta.memory.memory import Storage
from resitta.method import Learner, Method, graphed, register
from resitta.norm.affine_layers import mean_scale
from resitta.norm.domain_counts import DomainCounts
from resitta.norm.incremental_bn import (
    IncrementalBN,
    incremental_layers,
    measuring,
    observing,
    own_statistics,
)
from resitta.settings import setting
from resitta.training.change_points import Change, ChangePoints
from resitta.training.domain_memory import DomainMemory
from resitta.training.image_signature import image_signature
from resitta.training.mirrored_view import MirroredView, mean_prediction
from resitta.training.mixed_domains import MixedDomains
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Adam
from resitta.training.self_training import Anchor
from resitta.training.soft_likelihood import follow, sample_weights, soft_likelihood_ratio

logger = logging.getLogger(__name__)
Ints = NDArray[np.int64]

ROWS = 128
"""With more classes than this, some share a row of statistics: class c has row c mod 128."""
LASTING, RECOGNISED = 96, 160
"""A domain of fewer images is not remembered; after so many images it is not looked for among those remembered."""
LEAST = 32
"""How many images that takes at least."""
LATEST = 64
"""Over how many images the diversity of labels is measured."""
TAU, BETA = 1 / 3, 0.9
"""Of ROID's weights of samples, and of the mean prediction that they compare with."""


@register("tide")
@dataclass(frozen=True, kw_only=True)
class Tide(Method):
    """Statistics of the domain at hand, from its first images on; a bank to learn from; a label prior in time.

    A domain begins where the signatures of the images change (`change_bound`). BatchNorm then starts on the source
    statistics, which count as `strength` samples, and averages over all images since, balanced between classes: they
    count the more the more classes they show (`quota`, `ceiling`). A domain that has been here before (`recall_bound`)
    starts on the statistics it had. Once in `update_every` samples the affine parameters are pulled toward the source
    (`anchor`), and learn from the bank by ROID's soft likelihood ratio, the less often the fewer classes come. While
    they are diverse (`diversity`), the bank holds the latest samples, else it is an EntroBank.

    The pass that adds a batch to the statistics sees mirrored images, and a call returns the mean of both predictions
    (`mirror`), as long as the network is about as certain of mirrored images and agrees on them. Where the domain is
    new, a call returns the later prediction alone; without mirrored images it does so where a batch holds many classes
    (`diversity`), too. If images of several domains come side by side, each is normalised with the statistics of the
    images like it (`groups`). A paused or exported adapter predicts once, with one set of statistics.
    """

    title: ClassVar[str] = "Tide"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}

    label_prior: Literal["none", "temporal"] = setting(
        "temporal", doc="correct predictions by what the images before tell, where neighbours share a class"
    )
    strength: float = setting(64.0, above=0, doc="weight of the source statistics, in samples, at most")
    noise: float = setting(
        1.6, above=0, doc="spread of single samples around their domain; less: distant ones replace the source sooner"
    )
    quota: float = setting(4.0, above=0, doc="as how many samples the images of a single class count at most")
    ceiling: float = setting(96.0, above=0, doc="as how many samples those of all classes count at most")
    change_bound: float | None = setting(
        2.4, above=0, doc="a domain begins where signatures move by this many standard deviations; none: never"
    )
    domains: int = setting(16, at_least=1, doc="how many domains are remembered")
    recall_bound: float = setting(1.0, at_least=0, doc="how near the signature of a remembered domain must be")
    recalled_strength: float = setting(256.0, above=0, doc="as how many samples its statistics count then at most")
    groups: int = setting(
        4, at_least=0, at_most=ROWS, doc="groups of images when domains come side by side; 0 for none"
    )
    mirror: bool = setting(True, doc="average with predictions of mirrored images where the network agrees on them")
    diversity: float = setting(
        0.6,
        at_least=0,
        doc="from this share of the classes on it learns from the latest samples, and needs no mirror for newer logits",
    )
    lr: float = setting(
        2.2e-3, at_least=0, doc="learning rate of Adam, in units of the mean |γ|; 0 adapts statistics alone"
    )
    anchor: float = setting(
        0.01, at_least=0, at_most=1, doc="pulls the parameters toward the source by this factor at each update"
    )
    capacity: int = setting(64, at_least=2, doc="samples in the bank")
    update_every: int = setting(64, at_least=1, doc="samples between two updates of the parameters")
    forget_age: int = setting(512, at_least=1, doc="from this age on a sample of the bank is outdated")
    mature_age: int = setting(128, at_least=1, doc="from this age on a sample may be over-confident")

    @property
    def trains(self) -> Trained:
        """With a learning rate of 0 no parameter moves."""
        return "affine" if self.lr else "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feedback:
            reason = "tide averages the predictions that it learns from, and corrects their mean"
            raise BadSetting(f"{reason}: feedback=True would apply the label prior twice; leave it out")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return TideLearner(self, network, generator)


class TideLearner(Learner):
    """One network, the statistics of its domain, and the bank it learns from."""

    learns_from_predictions = True
    revises = True
    mean_prediction: Tensor

    def __init__(self, method: Tide, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        self.classes = min(network.classes, ROWS)
        rows, places = max(self.classes, method.groups), max(method.domains, method.groups)
        self.network = network.fork(method.trains, channels_last=True)
        self.network.with_bn(lambda layer: IncrementalBN(layer, rows, places))
        self.optimizer = Adam(self.network.parameters(), lr=method.lr * mean_scale(self.network))
        self.anchor = Anchor(self.network.parameters(), method.anchor)
        self.bank = RecentEntroBank(
            method.capacity,
            storage=Storage(network),
            generator=generator,
            forget_age=method.forget_age,
            mature_age=method.mature_age,
        )
        self.changes = ChangePoints(method.change_bound or float("inf"))
        self.past = DomainMemory(method.domains)
        self.mixed = MixedDomains(method.groups).to(network.device)
        self.mirrored = MirroredView().to(network.device)
        self.seen, self.is_new = 0, True
        self.credit = 0.0
        self.latest: Ints = np.zeros(0, dtype=np.int64)
        weighing = {"quota": method.quota, "ceiling": method.ceiling, "noise": method.noise}
        self.counts = DomainCounts(rows, classes=self.classes, **weighing).to(network.device, network.dtype)
        self.counts.begin(method.strength)
        precision = torch.promote_types(network.dtype, torch.float32)
        uniform = torch.full((network.classes,), 1 / network.classes, dtype=precision, device=network.device)
        self.register_buffer("mean_prediction", uniform)

    @property
    def _layers(self) -> list[IncrementalBN]:
        return incremental_layers(self.network)

    def exportable_network(self) -> Network:
        """The network with the present statistics."""
        return self.network

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of the network with the present statistics."""
        return self.network.predict(images)

    def learn_from(self, images: Tensor, logits: Tensor) -> Tensor | None:
        """Follow the domain, add the samples to the statistics and the bank, and learn; return newer logits, if better.

        Images of the domain before, at the beginning of a batch, have none: NaN.
        """
        screened = self.bank.screened(images, logits)
        signatures, labels, places = self._described(images, screened)
        diversity = self._diversity(labels)
        change = self.changes(signatures, diversity)
        first = 0 if change is None else max(0, change.start)
        start = 0 if change is None else int(places[first])
        if change is not None:
            self._enter(change, images[places[first:]])
        elif self.is_new and self.changes.seen >= LEAST:
            self._recall()
        if self.mixed(signatures[first:]):
            self._regroup()
        kept = ~screened.isnan().any(dim=1) & (torch.arange(len(images), device=images.device) >= start)
        newer = self._observed(images, logits, kept, diverse=diversity > self.method.diversity)
        self.seen += len(images) - start
        self.updates += 1
        self.bank.diverse = diversity > self.method.diversity
        for _ in self.bank.offer(images, screened, every=self.method.update_every, first=start):
            self.update(diversity)
        return newer

    def _observed(self, images: Tensor, logits: Tensor, kept: Tensor, *, diverse: bool) -> Tensor:
        """Add the samples to the statistics; return the logits that follow, NaN where the given ones are as good."""
        nothing = torch.full_like(logits, float("nan"))
        if self.mixed.on:
            return self.observe_groups(images, logits, kept).where(kept[:, None], nothing)
        if self.seen < self.method.strength:  # in a new domain the given logits are of other statistics
            return self.observe(images, logits, kept).where(kept[:, None], nothing)
        if not self.method.mirror:
            return self.observe(images, logits, kept).where(kept[:, None] & diverse, nothing)
        chosen = self.mirrored.chosen(len(images))
        newer = self.observe(images.flip(-1).where(chosen[:, None, None, None], images), logits, kept)
        helps = self.mirrored(logits, newer, chosen & kept)
        both = mean_prediction(logits, newer).where(helps, nothing)
        return both.where(chosen[:, None], newer if diverse else nothing).where(kept[:, None], nothing)

    @graphed
    def observe(self, images: Tensor, logits: Tensor, kept: Tensor) -> Tensor:
        """Add samples to the rows of their classes; return the logits that follow."""
        batch = self.counts.add(logits.argmax(dim=1) % self.classes, kept)
        with torch.no_grad(), observing(self.network, batch):
            return self.network(images)

    @graphed
    def observe_groups(self, images: Tensor, logits: Tensor, kept: Tensor) -> Tensor:
        """Add samples to the rows of their groups; return logits by the statistics of these."""
        groups = self.mixed.group_of(image_signature(self.network.pixels(images)))
        with torch.no_grad(), observing(self.network, self.counts.add(groups, kept, by_group=True)):
            return self.network(images)

    def update(self, diversity: float) -> None:
        """Learn from everything in the bank: each time where all classes come, the more seldom the fewer do.

        In between the parameters return toward the source: long runs of a class offer nothing better.
        """
        if not self.method.lr:
            return
        if self.bank.size > 1:
            self.credit += diversity**2
        if self.credit >= 1:
            self.credit -= 1
            self.learn(self.bank.samples)
        else:
            self.anchor(self.network.parameters())

    @graphed
    def learn(self, samples: Tensor) -> Tensor:
        """One Adam step on the soft likelihood ratio of samples that are diverse, and certain; return the loss."""
        with own_statistics(self.network):
            logits = self.network(samples)
        seen = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = sample_weights(seen.detach(), self.mean_prediction, TAU)
        follow(self.mean_prediction, seen.detach(), BETA)
        loss = (weights * chosen * soft_likelihood_ratio(seen)).sum() / self.method.capacity
        self.optimizer.descend(loss)
        self.anchor(self.network.parameters())
        return loss.detach()

    @graphed
    def describe(self, images: Tensor, logits: Tensor) -> Tensor:
        """The signature of each image and its label, N×10; NaN if the logits are, as a guard's filter makes them."""
        labels = logits.argmax(dim=1).where(~logits.isnan().any(dim=1), float("nan"))
        return torch.column_stack((image_signature(self.network.pixels(images)), labels))

    def _described(self, images: Tensor, logits: Tensor) -> tuple[NDArray[np.float64], Ints, Ints]:
        """The same on the host, in one copy, for images whose logits are no NaN, and where these are in the batch."""
        table = self.describe(images, logits).cpu().double().numpy()
        places = np.flatnonzero(np.isfinite(table).all(axis=1))
        return table[places, :-1], table[places, -1].astype(np.int64), places

    def _diversity(self, labels: Ints) -> float:
        """Which share of the classes that they could hold the latest labels do hold: exp of the entropy, normalised."""
        self.latest = np.concatenate((self.latest, labels))[-LATEST:]
        shares = np.unique(self.latest, return_counts=True)[1] / max(1, len(self.latest))
        return float(np.exp(-(shares * np.log(shares)).sum())) / max(1, min(self.network.classes, len(self.latest)))

    def _enter(self, change: Change, images: Tensor) -> None:
        """Begin another domain on the statistics of the source, or on those it followed if its images fit these better.

        Runs of another class can look like a change; and some domains are alike.
        """
        place = self.past.keep(change.left) if change.lasted >= LASTING and not self.mixed.on else None
        if place is not None:
            for layer in self._layers:
                layer.remember(place)
        self._begin(afresh=True)
        self.mixed.restart()
        if place is not None and self._misfit(images) > self._misfit(images, place):
            self.past.present, self.is_new = place, False
            for layer in self._layers:
                layer.recall(place)
        else:
            self.domain_changes += 1
            self.bank.forget_before(self.bank.clock + change.start + 1)
            logger.info("after %d samples another domain has begun", self.bank.clock + change.start)
        for layer in self._layers:  # which were compared with other statistics
            layer.move_to(layer.prior)

    def _misfit(self, images: Tensor, domain: int | None = None) -> float:
        """How far images are from the source statistics, or from those of a remembered domain; layers keep these."""
        for layer in self._layers:
            layer.move_to(layer.source if domain is None else layer.domains[domain])
        with torch.no_grad(), measuring(self.network) as found:
            self.network(images)
        return float(torch.stack(found).mean())

    def _recall(self) -> None:
        """Take the statistics of a remembered domain for the prior ones, if the present one is like it; or later."""
        self.is_new = self.changes.seen < RECOGNISED
        place = self.past.nearest(self.changes.mean, self.changes.distance, within=self.method.recall_bound)
        if place is not None:
            self.is_new = False
            self.past.present, self.past.recalled = place, self.past.recalled + 1
            self.counts.strength.fill_(self.method.recalled_strength)
            for layer in self._layers:
                layer.recall(place)

    def _regroup(self) -> None:
        """Groups of images have been found, and take the places of remembered domains; or there are none any more."""
        self.past.forget()
        self._begin(afresh=not self.mixed.on)

    def _begin(self, *, afresh: bool) -> None:
        self.seen, self.is_new, self.past.present = 0, True, None
        self.counts.begin(self.method.strength)
        for layer in self._layers:
            layer.begin(afresh=afresh)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters for `state_dict`."""
        return {
            **super().get_extra_state(),
            "seen": self.seen,
            "is_new": self.is_new,
            "credit": self.credit,
            "latest": torch.from_numpy(self.latest.copy()),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back from a `state_dict`."""
        super().set_extra_state(state)
        self.seen, self.is_new, self.credit = state["seen"], state["is_new"], state["credit"]
        self.latest = state["latest"].cpu().numpy().copy()
