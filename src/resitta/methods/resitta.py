"""ResiTTA: resilient batch normalisation, an entropy-driven memory bank, teacher-student self-training."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resitta.components.bn_layers import AdaptiveBN, BatchNorm, BatchStatisticsBN
from resitta.components.indexed_entrobank import IndexedEntroBank
from resitta.components.network import Network, Trained
from resitta.components.resibn import ResiBN, align, return_to_source
from resitta.components.robust_bn import RobustBN
from resitta.components.self_training import SelfTraining, seeded_view
from resitta.components.shift import Shift
from resitta.components.storage import Place, Storage
from resitta.components.views import View
from resitta.errors import BadSetting
from resitta.method import Learner, Method
from resitta.registry import register
from resitta.settings import setting

logger = logging.getLogger(__name__)


@register("resitta")
@dataclass(frozen=True, kw_only=True)
class ResiTTA(Method):
    """The paper's settings under the paper's names, and its ablations.

    `norm`: ResiBN, or RBN (no alignment) or AdBN (batch statistics) in its place. `drop_outdated`,
    `drop_overconfident`, `compare_uncertainty`: the three rules of EntroBank. `refresh`: re-score the bank with the
    teacher after each update. `strong_view`: any images -> images in [0, 1]; None is the paper's. `per_sample`: draw
    the paper's view anew for each image instead of once per batch.

    Beyond the paper: `anchor` draws what the student learns back to the source by this share after each step, for
    streams without an end. `renew` begins the bank and the statistics anew whenever the look of the images turns by so
    many standard deviations, for streams whose domains change at once; 2 is a good value (see `Shift`).

    For less memory, with the same results: `micro_batch` trains on so many samples of the bank at a time,
    `bank_device="cpu"` keeps the bank's images on the host, `bank_bytes` keeps them as bytes.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"eta": 0.05},
    }

    lr: float = setting(1e-3, above=0)
    eta: float = setting(0.01, at_least=0, at_most=0.5)
    nu_b: float = setting(0.05, at_least=0, at_most=1)
    nu_m: float = setting(0.001, at_least=0, at_most=1)
    capacity: int = setting(64, at_least=1)
    update_every: int = setting(64, at_least=1)
    forget_age: int = setting(1000, at_least=1)
    mature_age: int = setting(200, at_least=1)
    norm: Literal["resibn", "rbn", "adbn"] = "resibn"
    drop_outdated: bool = True
    drop_overconfident: bool = True
    compare_uncertainty: bool = True
    refresh: bool = False
    train: Literal["affine", "all"] = "affine"
    strong_view: View | None = None
    per_sample: bool = False
    anchor: float = setting(0.0, at_least=0, at_most=1)
    renew: float | None = setting(None, above=0)
    micro_batch: int | None = setting(None, at_least=1)
    bank_device: Place = "model"
    bank_bytes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batch is not None and self.norm != "resibn":
            raise BadSetting(
                f"micro_batch needs norm='resibn', found {self.norm!r}: its gradient flows through batches"
            )
        if self.renew is not None and self.norm != "resibn":
            raise BadSetting(f"renew needs norm='resibn', found {self.norm!r}: it does not know the source statistics")

    @property
    def trains(self) -> Trained:
        """The BatchNorm affine parameters, or all."""
        return self.train

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return ResiTTALearner(self, network, generator)

    def normalization(self, layer: BatchNorm) -> AdaptiveBN:
        """Wrap one BatchNorm layer: ResiBN, or its replacement in an ablation."""
        if self.norm == "adbn":
            return BatchStatisticsBN(layer)
        return RobustBN(layer, self.nu_b) if self.norm == "rbn" else ResiBN(layer, self.nu_b)


class ResiTTALearner(Learner):
    """A teacher that predicts, a student that learns from the bank."""

    def __init__(self, method: ResiTTA, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        self.networks = SelfTraining(
            network,
            method.normalization,
            view=seeded_view(method.strong_view, generator, per_sample=method.per_sample),
            lr=method.lr,
            nu=method.nu_m,
            train=method.train,
            channels_last=method.norm != "adbn",
            micro_batch=method.micro_batch,
            anchor=method.anchor,
        )
        self.shift = None if method.renew is None else Shift(method.renew)
        self.bank = IndexedEntroBank(
            method.capacity,
            storage=Storage(network, place=method.bank_device, as_bytes=method.bank_bytes),
            generator=generator,
            forget_age=method.forget_age,
            mature_age=method.mature_age,
            drop_outdated=method.drop_outdated,
            drop_overconfident=method.drop_overconfident,
            compare_uncertainty=method.compare_uncertainty,
        )

    def deployed(self) -> Network | None:
        """The teacher, whose statistics are ordinary running statistics unless AdBN takes them from each batch."""
        return None if self.method.norm == "adbn" else self.networks.teacher

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.networks.predict(images)

    def may_update(self, images: Tensor) -> bool:
        """Only when enough samples have come."""
        return self.bank.due(len(images), every=self.method.update_every) or (
            self.shift is not None and self.shift.due(len(images))
        )

    def absorb(self, images: Tensor, logits: Tensor) -> None:
        """Fill the bank, and update whenever `update_every` further samples have come."""
        begun = None if self.shift is None else self.shift(self.networks.teacher.pixels(images))
        if begun is not None:
            self.begin_anew(self.bank.clock + begun + 1)
        for _ in self.bank.fill(images, logits, every=self.method.update_every):
            self.update()

    def begin_anew(self, birth: int) -> None:
        """Forget the domain that ended before the `birth`-th sample, but not what the networks learned in it."""
        logger.info("after %d samples another domain has begun: bank and statistics begin anew", birth - 1)
        self.bank.forget_before(birth)
        return_to_source(self._layers)

    @property
    def _layers(self) -> list[ResiBN]:
        """Every ResiBN of teacher and student."""
        return [layer for layer in self.networks.modules() if isinstance(layer, ResiBN)]

    def update(self) -> None:
        """One adaptation on everything in the bank, then one soft-alignment step of every ResiBN."""
        samples = self.networks.union.begin(self.bank.samples)
        if samples is None:
            return
        self.replay(self.learn, samples, self.networks.strong(samples))
        self.updates += 1
        if self.method.refresh and self.bank.size:
            self.bank.rescore(self.predict(self.bank.samples))

    def learn(self, samples: Tensor, strong: Tensor) -> Tensor:
        """Train the student, let the teacher follow, draw the statistics of both to the source; return the loss."""
        loss = self.networks.update(samples, strong)
        align(self._layers, self.method.eta)
        return loss
