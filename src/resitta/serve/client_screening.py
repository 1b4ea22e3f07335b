"""Screens samples client by client, before the guard that all clients share."""

import hashlib
import itertools
import logging
import math
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.adapter import Adapter
from resitta.monitor.guard.exposure import Exposure
from resitta.monitor.guard.guard_state import RATE_SAMPLES
from resitta.monitor.guard.ood_filter import unknown
from resitta.serve.events import Events
from resitta.serve.influence import Influences, by_client

logger = logging.getLogger(__name__)
LOSES, REGAINS = 0.5, 0.25
"""The share of unknown images above which a client is no longer learned from, and below which it is again."""
RECENT = 1000
"""For how many samples of all clients together a client counts as present."""
TOLD = 10
"""Events about clients at once; beyond that one in `RECENT` samples, so that they do not push other events out."""


@dataclass
class Client:
    """The counters of one client, and the EMA of its share of unknown images."""

    number: int
    name: str
    last: int = 0
    learned: int = 0
    screened: int = 0
    unknown: int = 0
    unknown_share: float = 0.0
    is_unknown: bool = False
    is_harmful: bool = False
    exposure: Exposure = field(default_factory=Exposure)

    @property
    def is_allowed(self) -> bool:
        """Whether the client is learned from."""
        return not (self.is_unknown or self.is_harmful)

    def judge(self, images: int, unknown: int) -> None:
        """Update the share of unknown images."""
        self.unknown += unknown
        weight = 1 - math.exp(-images / RATE_SAMPLES)
        self.unknown_share += weight * (unknown / images - self.unknown_share)
        self.is_unknown = self.unknown_share > (REGAINS if self.is_unknown else LOSES)


class ClientScreening:
    """Decides for each image whether it may be learned from. For one thread: the writer's.

    While several clients send, out-of-distribution images (`monitor.guard`) are left out here, so that they cannot make
    the shared guard reject the images of all clients. A client whose images are mostly unknown is muted: its images are
    predicted, but not learned from until most are known again. So is a client whose images change the predictions of
    the others (see `Influences`). Both are logged as events. A single client is screened by the guard only.

    At most `most` clients are tracked; the least recently active one is removed first.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> screening = ClientScreening(resitta.adapt(tiny_network(), "resitta", guard=True), Events())
    >>> images, logits = torch.rand(2, 3, 8, 8), torch.tensor([[9.0, 0, 0], [9.0, 0, 0]])
    >>> images[1] = 0
    >>> screening.allowed(images, logits, ["192.0.2.1", "192.0.2.2"]).tolist()
    [True, False]
    """

    def __init__(self, adapter: Adapter, events: Events, *, most: int = 1000) -> None:
        self.adapter = adapter
        self.events = events
        self.most = most
        self.muted: frozenset[str] = frozenset()
        self.harmful: frozenset[str] = frozenset()
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._numbers = itertools.count()
        self._clock = 0
        self._salt = secrets.token_bytes(16)
        self._told: deque[int] = deque(maxlen=TOLD)
        self.influences = Influences(adapter)

    def allowed(self, images: Tensor, logits: Tensor, keys: Sequence[str]) -> NDArray[np.bool_]:
        """Return which images may be learned from, and update the unknown share of each client."""
        self._meet(keys)
        if self._is_alone() and not self.muted.intersection(keys):
            return np.ones(len(keys), dtype=np.bool_)
        found = self._unknown(images, logits, keys)
        self._judge(keys, found)
        known = torch.from_numpy(~found).to(images.device)
        self.influences.keep(images[known], list(itertools.compress(keys, (~found).tolist())))
        return ~found & np.array([key not in self.muted for key in keys], dtype=np.bool_)

    def attribute(self, updates: int) -> None:
        """After so many updates, measure the influence of a client, if one is due, and mute or unmute it."""
        key = self.influences.measure(updates)
        if key is not None and (client := self._clients.get(key)) is not None:
            was_allowed, influence = client.is_allowed, self.influences[key]
            client.is_harmful = influence.harmful
            self.harmful = self.harmful | {key} if influence.harmful else self.harmful - {key}
            rise = 0.0 if influence.effect is None else influence.effect.rise
            self._settle(key, client, was_allowed, f"its images change the loss of others by {rise:+.0%} of log C")

    def numbers(self, keys: Sequence[str]) -> list[int]:
        """The number of each image's client."""
        return [self._client(key).number for key in keys]

    def count(self, keys: Sequence[str], learned: NDArray[np.bool_]) -> None:
        """Count which images were learned from."""
        for key, is_learned in zip(keys, learned.tolist(), strict=True):
            client = self._clients[key]
            client.learned += is_learned
            client.screened += not is_learned

    def listing(self, top: int = 20) -> list[dict[str, Any]]:
        """The clients that sent most images, as JSON, under pseudonyms."""
        most = sorted(self._clients.values(), key=lambda client: -client.learned - client.screened)[:top]
        names = ("name", "learned", "screened", "unknown", "is_allowed", "is_unknown", "is_harmful")
        return [{name: getattr(client, name) for name in names} for client in most]

    def _meet(self, keys: Sequence[str]) -> None:
        """Record which clients send; remove the least recently active ones."""
        self._clock += len(keys)
        present = dict.fromkeys(keys)
        for key in present:
            self._client(key).last = self._clock
            self._clients.move_to_end(key)
        while len(self._clients) > max(self.most, len(present)):
            forgotten = self._clients.popitem(last=False)[0]
            self.muted, self.harmful = self.muted - {forgotten}, self.harmful - {forgotten}
            self.influences.forget(forgotten)

    def _client(self, key: str) -> Client:
        if key not in self._clients:
            self._clients[key] = Client(next(self._numbers), self._name(key))
        return self._clients[key]

    def _is_alone(self) -> bool:
        """Whether no other client has sent anything recently."""
        newest = list(itertools.islice(reversed(self._clients.values()), 2))
        return len(newest) < 2 or newest[1].last <= self._clock - RECENT

    def _unknown(self, images: Tensor, logits: Tensor, keys: Sequence[str]) -> NDArray[np.bool_]:
        """Which images the guard would reject one by one; none if it does not screen."""
        guard = self.adapter.guard
        if guard is None or not guard.guard.screen or self.adapter.learner.memory() is None:
            return np.zeros(len(images), dtype=np.bool_)
        bounds = {"max_entropy": guard.guard.max_sample_entropy, "min_contrast": guard.guard.min_contrast}
        with torch.no_grad():
            pixels = self.adapter.source.pixels(images)
            found = unknown(pixels, logits, **bounds)
            for key, places in by_client(keys).items():
                client, chosen = self._clients[key], torch.tensor(places, device=found.device)
                client.exposure, saturated = client.exposure.add(pixels[chosen], bound=guard.guard.max_clipped)
                found[chosen] |= saturated
        result: NDArray[np.bool_] = found.cpu().numpy()
        return result

    def _judge(self, keys: Sequence[str], found: NDArray[np.bool_]) -> None:
        total, unknown = Counter(keys), Counter(itertools.compress(keys, found.tolist()))
        for key, images in total.items():
            client = self._clients[key]
            was_allowed = client.is_allowed
            client.judge(images, unknown[key])
            share = f"{client.unknown_share:.0%} of its last images are out of distribution"
            self._settle(key, client, was_allowed, share)

    def _settle(self, key: str, client: Client, was_allowed: bool, reason: str) -> None:
        """Mute or unmute the client, if that has changed, and report the reason."""
        if client.is_allowed == was_allowed:
            return
        self.muted = self.muted - {key} if client.is_allowed else self.muted | {key}
        text = "is learned from again" if client.is_allowed else "is predicted, but no longer learned from"
        if len(self._told) < TOLD or self._clock - self._told[0] >= TOLD * RECENT:
            self.events.add("guard", f"client {client.name} {text}: {reason}")
            self._told.append(self._clock)
        logger.warning("client %s (%s) %s: %s", client.name, key, text, reason)

    def _name(self, key: str) -> str:
        """A pseudonym that does not reveal the address."""
        return hashlib.blake2s(key.encode(), key=self._salt, digest_size=4).hexdigest()
