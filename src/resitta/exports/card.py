"""The model card: a Markdown page beside an exported file that says what is in it and where it comes from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from resitta.adapter import Adapter
from resitta.checkpoint.io import describe
from resitta.monitor.stats import Stats
from resitta.training.label_prior import LabelPriorStats

PRIOR_LEFT_OUT = (
    "it corrects each prediction by what the images before it showed, and a file answers each image alone; "
    "for corrected predictions, call the adapter or serve it"
)
"""Why no file has a label prior in it."""
NORMALISED = "normalised: (pixel in [0, 1] − mean) / std, mean {mean}, std {std}"


@dataclass(frozen=True)
class Learned:
    """What an adapter had learned at one moment, and what it was made of."""

    model: str
    title: str
    about: Mapping[str, Any]
    stats: Stats
    guard: Mapping[str, int] | None

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        """Describe an adapter; the caller holds its lock."""
        source = adapter.source.model
        model = type(getattr(source, "_orig_mod", source)).__name__
        guard = None if adapter.guard is None else dict(adapter.guard.counts)
        title = type(adapter.method).title or adapter.method.name
        return cls(model, title, describe(adapter), adapter.stats, guard)

    @property
    def pixels(self) -> str:
        """What the values of the images must be."""
        if self.about["options"]["normalized"] is None:
            return "pixels in [0, 1]"
        mean, std = ([round(value, 6) for value in values] for values in self.about["options"]["normalized"])
        return NORMALISED.format(mean=mean, std=std)


def model_card(name: str, file: Iterable[tuple[str, str]], learned: Learned) -> str:
    """Write the card of the file `name`; `file` holds rows about the file itself.

    >>> from resitta import adapt
    >>> from resitta.conformance import tiny_network
    >>> card = model_card("a.onnx", [("format", "ONNX")], Learned.of(adapt(tiny_network(), "resitta", guard=True)))
    >>> print(card.partition("| weights")[0].strip())
    # a.onnx
    <BLANKLINE>
    Sequential, adapted to unlabeled images by ResiTTA (resitta).
    <BLANKLINE>
    | fact | value |
    | --- | --- |
    | format | ONNX |
    | preprocessing | pixels in [0, 1] |
    """
    about, stats = learned.about, learned.stats
    source = [
        ("preprocessing", learned.pixels),
        ("weights of the source model, SHA-256", f"`{about['model']['content']}`"),
        ("made with", f"resitta {about['resitta']}, torch {torch.__version__}"),
    ]
    counts = [
        ("samples", f"{stats.samples:,}"),
        ("updates", f"{stats.updates:,}"),
        ("mean entropy, in nats", f"{stats.mean_entropy:.4g}"),
        ("mean drift", f"{stats.mean_drift:.4g}"),
    ]
    parts = [
        f"# {name}",
        f"{learned.model}, adapted to unlabeled images by {learned.title} ({about['method']}).",
        table(("fact", "value"), [*file, *source]),
        "## What was learned",
        table(("counter", "value"), counts),
        "## Settings",
        table(("setting", "value"), _settings(about)),
        "## Guard",
        _guard(learned.guard),
        "## Label prior",
        _prior(stats.label_prior),
        "## Drift of each layer",
        "The Wasserstein distance W₂ of the layer's statistics from the source's.",
        table(("layer", "drift"), [(f"`{layer}`", f"{drift:.4g}") for layer, drift in stats.drift.items()]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def table(headings: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    """A table in Markdown.

    >>> print(table(("layer", "drift"), [("bn1", "0.2")]))
    | layer | drift |
    | --- | --- |
    | bn1 | 0.2 |
    """
    if not rows:
        return "None."
    cells = (headings, ("---",) * len(headings), *rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _settings(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The method's settings and the options that predictions depend on; of functions there are the names only."""
    values = {**about["settings"], **{name: about["options"].get(name) for name in ("seed", "precision", "output")}}
    known = [(name, f"`{value!r}`") for name, value in values.items()]
    return [*known, *((name, "a function") for name in about["functions"])]


def _guard(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "There was none."
    rows = [(reason, str(count)) for reason, count in sorted(counts.items()) if count]
    return table(("reason", "how often"), rows) if rows else "It never fired."


def _prior(stats: LabelPriorStats | None) -> str:
    if stats is None:
        return "There was none."
    corrected = f"The adapter's label prior corrected {stats.corrected:,} of {stats.samples:,} predictions"
    return f"{corrected}. It is not in the file: {PRIOR_LEFT_OUT}."
