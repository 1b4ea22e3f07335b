"""Measures how one client's images change the predictions for the others, one client at a time.

The measured network is a copy of the teacher. Its statistics move towards the client's last images, as updates from
this client alone would move them, and the last images of the other clients are predicted before and after. Neither the
learner nor a random generator is touched. Forward passes suffice: within a few updates it is the statistics that move
predictions, since the EMA of the teacher's parameters has a rate of 0.001.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.adapter import Adapter
from resitta.norm.bn_layers import bn_layers, updating_statistics
from resitta.norm.resibn import ResiBN
from resitta.runtime.weight_handoff import learned
from resitta.training.entropy import entropy
from resitta.training.network import Network

EVERY = 8
"""Updates between two measurements: one costs a third of an update on a CPU, all of them 4 % of the time to learn."""
OWN, OTHERS = 12, 24
"""How many of a client's images the statistics move towards, and how many of other clients are predicted."""
RATE = 0.2
"""How far the statistics move towards the client's: as in four or five updates of ResiTTA from its images alone."""
PRESENT = 16
"""Of how many clients images are kept: the most recent ones."""
HARMFUL = 0.05
"""The rise of the others' loss, as a share of log C, above which a client's effect is harmful."""
CERTAIN = 0.2
"""The source's entropy on a client's images, as a share of that on the others', below which they need no learning."""
STRIKES = 3
"""How many more measurements must be harmful than not before a client is muted, and the reverse."""


@dataclass(frozen=True)
class Effect:
    """The result of a measurement, as shares of log C.

    `rise`: by how much the loss of the others' images rises, with their present labels; the median over these clients.
    `entropy`: the mean entropy of the source model on the client's own images.
    """

    rise: float
    entropy: float


@dataclass
class Influence:
    """One client's effect so far, and its last images, which wait to be measured."""

    images: deque[Tensor] = field(default_factory=lambda: deque(maxlen=OWN))
    fresh: int = 0
    effect: Effect | None = None
    strikes: int = 0
    harmful: bool = False

    def judge(self, effect: Effect, others: Sequence[Effect]) -> bool:
        """Add a measurement; return whether it changes `harmful`.

        >>> influence, bad = Influence(), Effect(rise=0.2, entropy=0.0)
        >>> [influence.judge(bad, [Effect(rise=0.0, entropy=0.3)]) for _ in range(4)]
        [False, False, True, False]
        """
        self.effect, self.fresh = effect, 0
        step = 1 if is_harmful(effect, others) else -1
        self.strikes = min(STRIKES, max(0, self.strikes + step))
        before = self.harmful
        self.harmful = self.strikes > 0 if before else self.strikes == STRIKES
        return before != self.harmful


def is_harmful(effect: Effect, others: Sequence[Effect]) -> bool:
    """Whether a client moves the others' predictions far more than these do each other's, without needing adaptation.

    An honest client in another domain raises the loss of the others nearly as much as an attack. But it needs to be
    learned from: the source model is uncertain of its images. A client whose images the source is certain of loses
    nothing by not being learned from. Without another measured client there is nothing to compare with.

    >>> attack, foreign = Effect(rise=0.1, entropy=0.001), Effect(rise=0.1, entropy=0.3)
    >>> is_harmful(attack, [Effect(rise=0.0, entropy=0.2)]), is_harmful(foreign, [Effect(rise=0.0, entropy=0.2)])
    (True, False)
    >>> is_harmful(attack, [foreign, foreign])  # everyone disturbs everyone
    False
    """
    if not others:
        return False
    usual = max(0.0, median(other.rise for other in others))
    needed = median(other.entropy for other in others)
    return effect.rise > usual + HARMFUL and effect.entropy < CERTAIN * needed


def loss_rise(before: Tensor, after: Tensor, counts: Sequence[int]) -> float:
    """The rise of the cross-entropy with the labels predicted before, as a share of log C: the median over clients.

    `counts`: how many rows each client has, one client after the other.

    >>> sure, unsure = torch.tensor([[99.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> round(loss_rise(torch.cat([sure, sure]), torch.cat([sure, unsure]), [1, 1]), 3)
    0.5
    """
    labels = before.argmax(dim=1)
    losses = [F.cross_entropy(logits.float(), labels, reduction="none") for logits in (before, after)]
    rises = torch.split(losses[1] - losses[0], list(counts))
    means: list[float] = torch.stack([rise.mean() for rise in rises]).tolist()
    return median(means) / math.log(before.shape[1])


def by_client(keys: Sequence[str]) -> dict[str, list[int]]:
    """The positions of each client's images in a batch.

    >>> by_client(["a", "b", "a"])
    {'a': [0, 2], 'b': [1]}
    """
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


class Influences:
    """Measures clients in turn, each with new images; a suspected one comes first.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> influences = Influences(resitta.adapt(tiny_network(), "resitta"))
    >>> for _ in range(OWN):
    ...     influences.keep(torch.rand(4, 3, 8, 8), ["a", "a", "b", "b"])
    >>> influences.measure(EVERY), influences["a"].effect is not None, influences["b"].effect is None
    (None, True, True)
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._known: OrderedDict[str, Influence] = OrderedDict()
        self._turns: dict[str, int] = {}
        self._turn = 0
        self._updates = 0
        self._network: Network | None = None

    def __getitem__(self, key: str) -> Influence:
        return self._known.get(key) or Influence()

    def keep(self, images: Tensor, keys: Sequence[str]) -> None:
        """Keep two images of each client in a batch, so that a client's images are not all of one moment."""
        places = by_client(keys)
        for key, own in places.items():
            influence = self._known.setdefault(key, Influence())
            self._known.move_to_end(key)
            for place in sorted({own[0], own[len(own) // 2]}):
                influence.images.append(images[place].clone())  # a view would hold the whole batch
                influence.fresh += 1
        while len(self._known) > max(PRESENT, len(places)):
            self.forget(next(iter(self._known)))

    def forget(self, key: str) -> None:
        """Forget a client."""
        self._known.pop(key, None)
        self._turns.pop(key, None)

    def measure(self, updates: int) -> str | None:
        """Measure one client if one is due after so many further updates; return it if `harmful` has changed."""
        self._updates += updates
        if self._updates < EVERY or self.adapter.learner.exportable_network() is None:
            return None
        if not bn_layers(self.adapter.source.model):  # images do harm through the statistics alone
            return None
        key = self._next()
        if key is None:
            return None
        self._updates = 0
        self._turn += 1
        self._turns[key] = self._turn
        others = [i.effect for k, i in self._known.items() if k != key and not i.harmful and i.effect is not None]
        return key if self._known[key].judge(self._effect(key), others) else None

    def _next(self) -> str | None:
        """The next client with enough new images: a suspected one, else the one that waits the longest."""
        if len(self._known) < 2:
            return None
        ready = [k for k, i in self._known.items() if len(i.images) == OWN and i.fresh >= OWN // 2]

        def rank(key: str) -> tuple[bool, int]:
            influence = self._known[key]
            return not (influence.strikes and not influence.harmful), self._turns.get(key, 0)

        return min(ready, key=rank, default=None)

    @torch.no_grad()
    def _effect(self, key: str) -> Effect:
        network, source = self._copied(), self.adapter.source
        own, (others, counts) = torch.stack(list(self._known[key].images)), self._others(key)
        before = network(others)
        with updating_statistics(network):
            network(own)
        rise = loss_rise(before, network(others), counts)
        return Effect(rise, entropy(source(own).float()).mean().item() / math.log(before.shape[1]))

    def _others(self, key: str) -> tuple[Tensor, list[int]]:
        """The last images of the most recent other clients, and how many of each."""
        rest = [i for k, i in reversed(self._known.items()) if k != key]
        chosen = ([influence for influence in rest if not influence.harmful] or rest)[: OTHERS // 4]
        most = OTHERS // len(chosen)
        images = [list(influence.images)[-most:] for influence in chosen]
        return torch.stack([image for some in images for image in some]), [len(some) for some in images]

    def _copied(self) -> Network:
        """The measured network, as the teacher is now."""
        teacher = self.adapter.learner.exportable_network()
        assert teacher is not None  # `measure` has asked
        if self._network is None:
            network = self.adapter.source.fork(self.adapter.method.trains)
            self._network = network.with_bn(lambda layer: ResiBN(layer, RATE)).requires_grad_(False)
        torch._foreach_copy_(learned(self._network), learned(teacher))
        return self._network
