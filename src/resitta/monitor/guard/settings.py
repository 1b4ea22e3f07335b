"""The settings of a guard."""

from dataclasses import dataclass
from typing import Literal

from resitta.settings import check_settings, setting

Action = Literal["warn", "rollback", "reset", "raise"]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a guarded adapter watches for, and what it does then. `adapt(model, guard=True)` takes the defaults.

    An update that leaves a non-finite loss, gradient, statistic or parameter is always taken back.

    `action`, when the adapter has collapsed: "warn" only tells, "rollback" returns to the last healthy snapshot,
    "reset" to the source, "raise" raises `Collapsed`. Steps are taken back as long as the reason lasts.

    Collapse is judged over about `window` samples, exponentially weighted. It takes up to three windows to show, so a
    snapshot counts as healthy when three windows have followed it without an alarm.

    - `min_diversity`: the effective number of predicted classes, exp H(mean one-hot label), from 1 to C; fires only
      where the source model disagrees, since a stream may well show one class for long.
    - `max_entropy`: the mean entropy of the predictions, as a share of log C; fires only where the source model is
      more certain than that of the same images.
    - `max_drift`: the distance of the statistics from the source's in units of the source's spread, mean over layers
      of ‖(μ_t-μ_s, σ_t-σ_s)‖ / ‖σ_s‖.

    `screen`: samples that look like nothing known do not enter the memory. They are predicted, but not learned from:
    those with an entropy above `max_sample_entropy` (a share of log C), flat images whose pixels deviate by less than
    `min_contrast` (of 1) from their mean, clipped ones without tones between black and full light, pure noise,
    whose pixels are independent of their neighbours, and saturated ones: more than `max_clipped` of their pixels are
    black, or more than that fully lit, while the same is true of the mean of the last 64 samples or so, and by 0.25
    more than is usual in this stream. Where most samples are unknown, the others do not enter either. Switch it off
    where images are black and white by nature.

    >>> Guard(action="reset", window=500).max_entropy
    0.9
    >>> Guard(action="panic")
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: action must be one of 'warn', 'rollback', 'reset', 'raise', found 'panic'; its default \
is 'rollback'
    """

    action: Action = "rollback"
    window: int = setting(1000, at_least=1)
    min_diversity: float = setting(1.5, at_least=1)
    max_entropy: float = setting(0.9, at_least=0, at_most=1)
    max_drift: float = setting(1.5, above=0)
    screen: bool = True
    max_sample_entropy: float = setting(0.99, at_least=0, at_most=1)
    min_contrast: float = setting(0.5 / 255, at_least=0, at_most=1)
    max_clipped: float = setting(0.3, at_least=0, at_most=1)

    def __post_init__(self) -> None:
        check_settings(self)
