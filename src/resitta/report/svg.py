"""The little that hand-written SVG needs: elements, numbers, scales and round ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element. Children are SVG already; attribute values are escaped; `_` in names stands for `-`.

    >>> tag("circle", cx=1.25, class_="dot", data_label="<b>")
    '<circle cx="1.2" class="dot" data-label="&lt;b&gt;"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """A line of text, escaped."""
    return tag("text", escape(content), x=x, y=y, **attributes)


def number(value: object) -> str:
    """A tenth of a pixel is precise enough for coordinates; everything else is left as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; the middle when the range is a single value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values that cover a range, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 83), ticks(22.4, 23.4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [22.4, 22.6, 22.8, 23.0, 23.2, 23.4])
    """
    span = high - low if high > low else max(abs(high), 1.0)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 5, 10, 20) if span / (s * power) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places (label positions) apart until neighbours are `gap` from each other, inside [low, high] if they fit.

    >>> spread([10, 11, 50], 10, 0, 100)
    [10, 20, 50]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    floor = low
    for i in order:
        moved[i] = max(moved[i], floor)
        floor = moved[i] + gap
    ceiling = high
    for i in reversed(order):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved
