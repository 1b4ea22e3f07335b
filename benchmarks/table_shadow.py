"""Tables of the comparison with the source: what it costs, and when it falls back."""

from typing import Any

from table_tools import TITLES, VALUES, Cell, markdown, record, table

NAMES = ("with fallback", "without", "source")


def switch(kind: str, after: str) -> str:
    """How many images after a border a switch came."""
    found = record("shadow")["harm"]
    place = next(samples for name, samples in found["switches"] if name == kind)
    return f"{place - found['borders'][after]:,}"


def chance() -> str:
    """How often equally accurate networks fall back."""
    rates: list[float] = [row["fallbacks per 10,000 labels"] for row in record("shadow")["chance"].values()]
    return " to ".join(f"{rate:.1f}" for rate in sorted({round(min(rates), 1), round(max(rates), 1)}))


VALUES["shadow-fell-back"] = lambda: switch("FellBack", "harm begins")
VALUES["shadow-resumed"] = lambda: switch("Resumed", "harm ends")
VALUES["shadow-chance"] = chance


@table("shadow-cost")
def cost() -> str:
    """The ratio of times, and its range over the rounds."""
    rows: list[list[Cell]] = [
        [TITLES[method], f"{row['ratio']:.3f}", f"{min(row['rounds']):.3f}–{max(row['rounds']):.3f}"]
        for method, row in record("shadow")["cost"].items()
    ]
    return markdown(["time with `shadow=0.05` / without", "median", "rounds"], rows)


@table("shadow-harm")
def harm() -> str:
    """Accuracies in each span, and what shows without labels at its end."""
    found: dict[str, Any] = record("shadow")["harm"]
    titles = ("before", "learning rate 0.1", "afterwards")
    rows: list[list[Cell]] = []
    for title, span in zip(titles, found["spans"], strict=True):
        seen, right = span["unlabelled"], [f"{100 * span['accuracy'][name]:.1f}" for name in NAMES]
        sure = f"{seen['adapted_confidence']:.2f} / {seen['source_confidence']:.2f}"
        rows.append([title, f"{span['images']:,}", *right, f"{100 * seen['disagreement']:.0f}", sure])
    head = ["accuracy (%)", "images", "with fallback", "without", "source", "disagreement (%)", "confidence, both"]
    return markdown(head, rows)
