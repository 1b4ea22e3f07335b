"""The settings of a guard."""

from dataclasses import dataclass
from typing import Literal

from resitta.settings import check_settings, setting

Action = Literal["warn", "rollback", "reset", "raise"]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The bounds of a guard, and its action. `adapt(model, guard=True)` uses the defaults.

    An update that leaves a non-finite loss, gradient, statistic or parameter is always undone.

    `action`, when the adapter has collapsed: "warn" only reports, "rollback" returns to the last healthy snapshot,
    "reset" to the source, "raise" raises `Collapsed`. Steps are undone as long as the reason lasts.

    Collapse is judged by EMAs over about `window` samples. It takes up to three windows to show, so a snapshot counts
    as healthy when three windows have followed it without an alarm.

    - `min_diversity`: the effective number of predicted classes, exp H(mean one-hot label), from 1 to C; fires only
      if the source model disagrees, since a stream may show one class for long.
    - `max_entropy`: the mean entropy of the predictions, as a share of log C; fires only if the source model is more
      certain than that about the same images.
    - `max_drift`: the distance of the statistics from the source's in units of the source's spread, mean over layers
      of ‖(μ_t-μ_s, σ_t-σ_s)‖ / ‖σ_s‖.

    `screen`: out-of-distribution samples ("unknown") are predicted, but do not enter the memory: those with an entropy
    above `max_sample_entropy` (a share of log C), flat images whose pixels deviate by less than `min_contrast` (of 1)
    from their mean, images with hardly any tones between black and white, pure noise, whose pixels are independent of
    their neighbours, and saturated images: more than `max_clipped` of their pixels are black, or more than that white,
    while the same is true of the mean of the last 64 samples or so, and by 0.25 more than usual in this stream. While
    most samples are unknown, the others do not enter either. Switch it off for images that are black and white.

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
