"""Tables of Tide: beside the best other methods, with parts left out, on other lengths, batches and testbeds."""

from collections import defaultdict
from typing import Any

from recommendations import TITLES as BEDS
from table_matrix import EMPTY, everything
from table_regret import ORDERS, main_setups
from table_tools import RECORDS, Cell, markdown, one, record, table

from resitta.methods.recommend import Cell as Measured

WORDS = {"ptta": "PTTA", "slots": "PTTA, shuffled slots", "sorted": "sorted", "iid": "shuffled", "mixed": "mixed"}
PRIOR, ALONE = "tide", "tide label_prior=none"
"""With its label prior, and without."""
PARTS: dict[str, dict[str, Any]] = {
    "all parts, without the label prior": {},
    "no mirrored images": {"mirror": False},
    "the source always counts as 64 samples": {"noise": 1e9},
    "no groups where domains are mixed": {"groups": 0},
    "no detection of changes": {"change_bound": None},
    "statistics alone, no learning": {"lr": 0},
    "no anchor": {"anchor": 0},
}
WITH_PRIOR: dict[str, dict[str, Any]] = {
    "with the label prior": {},
    'with `lookahead="batch"`': {"lookahead": "batch"},
}


@table("tide-errors")
def errors() -> str:
    """Tide and the best other method of each stream; those that use the order of labels apart."""
    ordered = {cell.label for cell in everything().cells if cell.uses_label_order}
    rows: list[list[Cell]] = []
    for (bed, order), found in sorted(main_setups(everything().cells).items(), key=lambda pair: place(*pair[0])):
        if PRIOR not in found and ALONE not in found:
            continue
        others = {label: error for label, error in found.items() if not label.startswith("tide")}
        plain = {label: error for label, error in others.items() if label not in ordered}
        with_order = {label: error for label, error in others.items() if label in ordered}
        cells = [found.get(ALONE, "–"), best(plain), found.get(PRIOR, "–"), best(with_order)]
        rows.append([f"{BEDS[bed]}, {WORDS[order]}", *cells])
    head = ["error (%)", "Tide without label prior", "best other", "Tide", "best other with the order of labels"]
    return markdown(head, rows) if rows else EMPTY


def place(bed: str, order: str) -> tuple[int, int]:
    """The place of a stream in a table."""
    return list(BEDS).index(bed), list(ORDERS).index(order)


def best(errors: dict[str, float]) -> str:
    """The lowest error and whose it is.

    >>> best({"tent": 30.0, "bn": 31.0})
    '30.0 (`tent`)'
    """
    if not errors:
        return "–"
    label = min(errors, key=errors.__getitem__)
    name, _, changed = label.partition(" ")
    return f"{errors[label]:.1f} (`{name}`{f' with `{changed}`' if changed else ''})"


@table("tide-ablation")
def ablation() -> str:
    """Each part left out."""
    orders = [order for order in ORDERS if (RECORDS / "tide-ablation" / order).is_dir()]
    rows: list[list[Cell]] = []
    for prior, parts in (("none", PARTS), (None, WITH_PRIOR)):
        for title, changed in parts.items():
            settings = {**DEFAULTS, "label_prior": prior, **changed}
            rows.append([title, *(one(f"tide-ablation/{order}", "tide", **settings).average for order in orders)])
    return markdown(["error (%), WRN-16-1, 1,000 per corruption", *(WORDS[order] for order in orders)], rows)


DEFAULTS: dict[str, Any] = {
    "mirror": True,
    "noise": 1.6,
    "groups": 4,
    "change_bound": 2.4,
    "lr": 2.2e-3,
    "anchor": 0.01,
    "lookahead": None,
}


@table("tide-noise")
def noise() -> str:
    """Shifts that leave few classes, by the setting that tells how soon the source gives way."""
    found = record("extreme-shifts")["errors"]
    columns = list(next(iter(found.values())))
    titles = ["Source", "BN", *(named(column.partition("=")[2]) for column in columns[2:])]
    rows: list[list[Cell]] = []
    for stream, errors in found.items():
        order, _, shift = stream.partition(", ")
        rows.append([f"{shift}, {WORDS[order]}", *(errors[column] for column in columns)])
    return markdown(["error (%), WRN-16-1, 1,000 images", *titles], rows)


def named(value: str) -> str:
    """A value of the setting; the largest switches it off.

    >>> named("1.6"), named("1e+09")
    ('`noise=1.6`', 'source always 64')
    """
    return "source always 64" if float(value) >= DISTANT else f"`noise={value}`"


DISTANT = 1e9


@table("tide-streams")
def streams() -> str:
    """All lengths, sizes of batches and testbeds that Tide was measured on."""
    setups: dict[tuple[tuple[int, int], str, int, int], dict[str, Measured]] = defaultdict(dict)
    for cell in everything().cells:
        if cell.method == "tide" and cell.course == "once":
            at = place(cell.bed, cell.order), BEDS[cell.bed], cell.images // cell.domains, cell.batch_size
            setups[at][cell.label] = cell
    rows: list[list[Cell]] = [
        [f"{bed}, {WORDS[ORDERS[order]]}, {n:,}", str(batch), with_spread(found, ALONE), with_spread(found, PRIOR)]
        for ((_, order), bed, n, batch), found in sorted(setups.items())
    ]
    return markdown(["images per corruption", "batch", "Tide without label prior", "Tide"], rows)


def with_spread(found: dict[str, Measured], label: str) -> str:
    """An error, with its standard deviation where there are several seeds."""
    cell = found.get(label)
    return "–" if cell is None else f"{cell.error:.1f}" + ("" if cell.spread is None else f" ± {cell.spread:.1f}")
