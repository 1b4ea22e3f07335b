"""ResiTTA: resilient batch normalisation, an entropy-driven memory bank, teacher-student self-training."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resitta.errors import BadSetting
from resitta.memory.entrobank import IndexedEntroBank
from resitta.memory.memory import Place, Storage
from resitta.method import Learner, Method, graphed, register
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, BatchStatisticsBN
from resitta.norm.resibn import ResiBN, align, return_to_source
from resitta.norm.robust_bn import RobustBN
from resitta.settings import setting
from resitta.training.drift_detector import DriftDetector, shift_of
from resitta.training.network import Network, Trained
from resitta.training.self_training import SelfTraining, seeded_view
from resitta.training.strong_view import View

logger = logging.getLogger(__name__)


@register("resitta")
@dataclass(frozen=True, kw_only=True)
class ResiTTA(Method):
    """Resilient BatchNorm, an entropy-driven memory bank, teacher and student.

    The settings have the paper's names; its ablations are among them. `norm`: ResiBN, or RBN (no alignment) or AdBN
    (batch statistics) in its place. `drop_outdated`, `drop_overconfident`, `compare_uncertainty`: the three rules of
    EntroBank. `refresh`: re-score the bank with the teacher after each update. `strong_view`: any images -> images in
    [0, 1]; None is the paper's. `per_sample`: draw the paper's view for each image instead of once per batch.

    Beyond the paper: `anchor` pulls the student toward the source weights by this factor after each step, for endless
    streams. `intransigent`: the teacher keeps the source's parameters, though not its statistics, and the student
    predicts (arXiv 2609.02507); for long streams, too. `reset_on_shift` clears the bank and resets the statistics to
    the source when the images shift by this many standard deviations, for streams with abrupt domain shifts; 2 is a
    good value (see `DomainShiftDetector`). It also takes a detector with `update(value)` and `drift_detected`, such as
    `river.drift.ADWIN()`, which gets the sharpness of each image (see `SharpnessShift`).

    For less memory, with the same results: `micro_batch` trains on this many samples of the bank at a time,
    `bank_device="cpu"` keeps the bank's images on the host, `bank_bytes` keeps them as bytes.
    """

    title: ClassVar[str] = "ResiTTA"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"eta": 0.05},
    }
    renamed: ClassVar[Mapping[str, str]] = {"renew": "reset_on_shift"}
    paper: ClassVar[str] = (
        "Zhou, Tian, Cheung, See, Zhang. Resilient Practical Test-Time Adaptation: Soft Batch Normalization Alignment "
        "and Entropy-driven Memory Bank."
    )

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    eta: float = setting(0.01, at_least=0, at_most=0.5, doc="η, step size of the alignment with the source statistics")
    nu_b: float = setting(0.05, at_least=0, at_most=1, doc="ν_b, EMA rate of the BatchNorm statistics")
    nu_m: float = setting(0.001, at_least=0, at_most=1, doc="ν_m, EMA rate of the teacher's parameters")
    capacity: int = setting(64, at_least=1, doc="samples in the bank")
    update_every: int = setting(64, at_least=1, doc="samples between two updates")
    forget_age: int = setting(1000, at_least=1, doc="T_forget, from this age on a sample is outdated")
    mature_age: int = setting(200, at_least=1, doc="T_mature, from this age on a sample may be over-confident")
    norm: Literal["resibn", "rbn", "adbn"] = setting(
        "resibn", doc="ResiBN, RBN (no alignment), AdBN (batch statistics)"
    )
    drop_outdated: bool = setting(True, doc="rule 1 of the bank: the oldest outdated sample leaves")
    drop_overconfident: bool = setting(True, doc="rule 2 of the bank: a mature sample of lowest entropy leaves")
    compare_uncertainty: bool = setting(True, doc="rule 3 of the bank: the more uncertain sample leaves")
    refresh: bool = setting(False, doc="re-score the bank with the teacher after each update")
    train: Literal["affine", "all"] = setting("affine", doc="which parameters train: BatchNorm's affine ones, or all")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")
    anchor: float = setting(
        0.0, at_least=0, at_most=1, doc="pulls the student toward the source weights by this factor after each step"
    )
    reset_on_shift: float | DriftDetector | None = setting(
        None,
        above=0,
        doc="reset bank and statistics when the images shift by this many standard deviations, or a detector says so",
    )
    intransigent: bool = setting(False, doc="the teacher keeps the source's parameters, and the student predicts")
    micro_batch: int | None = setting(None, at_least=1, doc="train on this many samples at a time: less memory")
    bank_device: Place = setting("model", doc="where the bank keeps its images")
    bank_bytes: bool = setting(False, doc="keep the bank's images as bytes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batch is not None and self.norm != "resibn":
            raise BadSetting(
                f"micro_batch needs norm='resibn', found {self.norm!r}: its gradient flows through batches"
            )
        if self.reset_on_shift is not None and self.norm != "resibn":
            raise BadSetting(
                f"reset_on_shift needs norm='resibn', found {self.norm!r}: it does not know the source statistics"
            )

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
    """A teacher and a student that learns from the bank; the teacher predicts unless it is intransigent."""

    learns_from_predictions = True

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
            intransigent=method.intransigent,
        )
        self.shift = shift_of(method.reset_on_shift)
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

    def exportable_network(self) -> Network | None:
        """The network that predicts; its statistics are ordinary ones unless AdBN takes them from each batch."""
        return None if self.method.norm == "adbn" else self.networks.predictor

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of the teacher, or of the student of an intransigent one."""
        return self.networks.predictor.predict(images)

    def may_update(self, images: Tensor) -> bool:
        """Only when `update_every` samples have come, or a domain shift may show."""
        return self.bank.due(len(images), every=self.method.update_every) or (
            self.shift is not None and self.shift.due(len(images))
        )

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        """Add the samples to the bank, and adapt to it after every `update_every` of them."""
        begun = None if self.shift is None else self.shift(self.networks.teacher.pixels(images))
        if begun is not None:
            self.reset_domain(self.bank.clock + begun + 1)
        for _ in self.bank.fill(images, logits, every=self.method.update_every):
            self.update()

    def update(self) -> None:
        """Adapt once to everything in the bank."""
        views = self.networks.views(self.bank.samples)
        if views is None:
            return
        self.learn(*views)
        self.updates += 1
        if self.method.refresh and self.bank.size:
            self.bank.rescore(self.predict(self.bank.samples))

    @graphed
    def learn(self, samples: Tensor, strong: Tensor) -> Tensor:
        """Student step and statistics EMA, teacher EMA, soft alignment; return the loss."""
        loss = self.networks.train_student(samples, strong)  # CE(teacher, student); ResiBN of both moves by ν_b
        self.networks.move_teacher()  # θ' <- (1-ν_m) θ' + ν_m θ
        align(self._layers, self.method.eta)  # ResiBN of both, toward the source statistics
        return loss

    @property
    def _layers(self) -> list[ResiBN]:
        """Every ResiBN of teacher and student."""
        return [layer for layer in self.networks.modules() if isinstance(layer, ResiBN)]

    def reset_domain(self, birth: int) -> None:
        """Clear the bank of samples before the `birth`-th, and the statistics; the networks keep what they learned."""
        logger.info("after %d samples another domain has begun: bank and statistics start again", birth - 1)
        self.domain_changes += 1
        self.bank.forget_before(birth)
        return_to_source(self._layers)
