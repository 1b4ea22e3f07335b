"""What a shadow reports: frozen records, and their numbers as metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from resitta.monitor.shadow.comparison import PairedAccuracy

Metric = tuple[str, dict[str, str], float]
"""A name, labels and a value."""
METRICS = {
    "resitta_shadow_disagreement": "Share of compared images that adapted and source network classify differently.",
    "resitta_shadow_confidence": "Mean confidence on the same images.",
    "resitta_shadow_entropy": "Mean entropy on the same images, in nats.",
    "resitta_shadow_accuracy": "Accuracy on the same labelled images.",
    "resitta_shadow_difference": "Accuracy of the adapted network minus the source's, and its 95 % interval.",
    "resitta_falling_back": "1 while the source's predictions are returned, else 0.",
}
"""The metrics of the recent window, with their help texts."""


@dataclass(frozen=True)
class Answered:
    """The images of a call: their ids, which of them are compared, and whether the source's predictions were returned.

    `epoch` changes when counting begins anew, so that with it ids are unique.
    """

    ids: range
    compared: tuple[bool, ...]
    fallback: bool
    epoch: str


NOTHING_ANSWERED = Answered(range(0), (), fallback=False, epoch="")
"""The images of no call."""


@dataclass(frozen=True)
class Agreement:
    """The adapted and the source network on the same images: how often their classes differ, and how sure they are."""

    compared: int
    disagreement: float
    adapted_confidence: float
    source_confidence: float
    adapted_entropy: float
    source_entropy: float


@dataclass(frozen=True)
class FeedbackStats:
    """What labels told: over all that came (`running`), and over those of the newest images (`recent`).

    `not_compared` labels are of images that only the adapted network has predicted. `unknown` ones have ids that were
    never given, or have been forgotten.
    """

    not_compared: int
    unknown: int
    running: PairedAccuracy | None
    recent: PairedAccuracy | None


@dataclass(frozen=True)
class FeedbackCount:
    """What became of the labels of one call of `feedback`, and whether the source's predictions are returned now."""

    used: int
    not_compared: int
    unknown: int
    falling_back: bool


@dataclass(frozen=True)
class ShadowStats:
    """How the adapted network compares with the source.

    `predicted` images were answered, of which a `share` is compared: `running` over all, `recent` over the last ones.
    `falling_back` tells whether the source's predictions are returned at present, `fell_back` how often that began.
    """

    share: float
    predicted: int
    running: Agreement | None
    recent: Agreement | None
    feedback: FeedbackStats
    falling_back: bool
    fell_back: int


def shadow_metrics(stats: ShadowStats) -> Iterator[Metric]:
    """The numbers of the recent window."""
    if stats.recent is not None:
        yield from agreement_metrics(stats.recent)
    if stats.feedback.recent is not None:
        yield from accuracy_metrics(stats.feedback.recent)
    yield "resitta_falling_back", {}, float(stats.falling_back)


def agreement_metrics(found: Agreement) -> Iterator[Metric]:
    """The numbers of a comparison without labels."""
    yield "resitta_shadow_disagreement", {}, found.disagreement
    for network in ("adapted", "source"):
        for name in ("confidence", "entropy"):
            yield f"resitta_shadow_{name}", {"network": network}, getattr(found, f"{network}_{name}")


def accuracy_metrics(found: PairedAccuracy) -> Iterator[Metric]:
    """The numbers of a comparison with labels.

    >>> from resitta.monitor.shadow.comparison import paired_accuracy
    >>> next(accuracy_metrics(paired_accuracy(1, 0, 0, 1)))
    ('resitta_shadow_accuracy', {'network': 'adapted'}, 0.5)
    """
    for network in ("adapted", "source"):
        yield "resitta_shadow_accuracy", {"network": network}, getattr(found, network).value
    for bound in ("value", "low", "high"):
        yield "resitta_shadow_difference", {"bound": bound}, getattr(found.difference, bound)
