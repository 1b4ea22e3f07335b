"""The command that recommends a method: recommend."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from resitta.cli.flags import ModelOptions
from resitta.errors import BadSetting
from resitta.names import OrderName
from resitta.settings import parse_pairs

if TYPE_CHECKING:
    from torch import nn

    from resitta.methods.recommend import Cell, Recommendation

ORDERS = {
    "ptta": "temporally correlated: neighbours share classes (ptta)",
    "slots": "temporally correlated, classes mixed inside each time slot (slots)",
    "sorted": "sorted by label (sorted)",
    "iid": "shuffled, one domain after the other (iid)",
    "mixed": "shuffled, all domains at once (mixed)",
}
COURSES = {"once": "each domain once", "gradual": "domains that come gradually", "recurring": "domains that come back"}
CHECK_YOURS = "A testbed is not your stream: compare the first few on your own images with `resitta bench`."
SMALL_BATCH = 16
"""Below this size, statistics of a batch are poor."""


def recommend(
    model: str,
    *,
    order: OrderName = "ptta",
    batch_size: int = 64,
    domains: Literal["once", "recurring"] = "once",
    classes: int | None = None,
    model_options: ModelOptions = (),
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Say which methods work on a model, and which is best on a stream like yours.

    Errors were measured on a testbed with the same kind of normalisation as the model, costs with WRN-28-10 on an H200;
    nothing is run here, and neither images nor weights are needed. `resitta bench` measures on your own images.

    Examples: resitta recommend wrn28x10 --order ptta, or
    resitta recommend timm:vit_base_patch16_224 --order iid --batch-size 8, or
    resitta recommend my_code.py:make_model --order mixed --domains recurring

    Parameters
    ----------
    model
        As for bench: a name of `resitta models`, timm:NAME, torchvision:NAME, package.module:function or
        path/to/file.py:function.
    order
        How images come. ptta: temporally correlated, as from a camera; sorted: by label; iid: shuffled; mixed:
        shuffled, all domains at once.
    batch_size
        Images per call of the adapter.
    domains
        once: conditions change and do not return; recurring: they return.
    classes
        The number of classes, if the model does not tell.
    model_options
        Options of the function that makes the model: num_classes=10.
    as_json
        Print JSON, for other programs.
    """
    from resitta.cli.terminal import say  # noqa: PLC0415  (torch, which --help does not need)
    from resitta.methods.recommend import Stream  # noqa: PLC0415
    from resitta.methods.recommend import recommend as decide  # noqa: PLC0415
    from resitta.models import create  # noqa: PLC0415

    if classes is not None and classes < 2:
        raise BadSetting(f"classes must be a whole number from 2 on, found {classes}; or leave it out")
    stream = Stream(order=order, batch_size=batch_size, course=domains)
    network = create(model, None, **parse_pairs(model_options, "--model-set"))
    found = decide(network, stream, classes=classes or _classes(network))
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False) + "\n")
        return
    say("\n".join(opening(found)))
    if found.cells:
        _print_cells(found.cells)
    say("\n".join(closing(found)))


def _classes(model: "nn.Module") -> int:
    from resitta.training.network import Network  # noqa: PLC0415

    try:
        return Network(model).classes
    except BadSetting as error:
        reason = str(error).partition(";")[0]
        raise BadSetting(f"{reason}; give it with --classes") from error


def opening(found: "Recommendation") -> list[str]:
    """Sentences about the model, the stream, and the testbed nearest to them."""
    stream, bed = found.stream, found.bed
    norm = "no normalisation layers" if found.normalisation == "none" else f"normalisation: {found.normalisation}"
    lines = [
        f"Model: {found.classes:,} classes, {norm}.",
        f"Stream: {ORDERS[stream.order]}, batches of {stream.batch_size}, {COURSES[stream.course]}.",
    ]
    if bed is None:
        return [*lines, "Not measured yet: there are no records of a network with such layers."]
    lines.append(f"Nearest testbed: {bed.title} ({bed.name}), {bed.classes:,} classes.")
    if not found.cells:
        return [*lines, "Nothing was measured there in this order yet."]
    cell = found.cells[0]
    lines.append(
        f"Measured there: {cell.images:,} images, {cell.domains} corruptions of severity {cell.severity}, "
        f"batches of {cell.batch_size}, {COURSES[cell.course]}, {_seeds(found.cells)}."
    )
    if cell.course != stream.course or cell.batch_size != stream.batch_size:
        lines.append("Nothing nearer to your stream was measured.")
    if stream.batch_size < SMALL_BATCH <= cell.batch_size:
        lines.append("With batches this small, methods that normalise with the batch's statistics do worse than here.")
    return lines


def closing(found: "Recommendation") -> list[str]:
    """Sentences about the rest of the methods, and the recommendation."""
    where = "there" if found.cells else "yet"
    lines = [f"Works, but was not measured {where}: {', '.join(found.unmeasured)}."] if found.unmeasured else []
    lines += [f"{name} does not work: {reason}" for name, reason in found.unsuitable.items()]
    if found.winner is None:
        return [*lines, "No recommendation without a measurement. `resitta bench` measures on your own images."]
    lines.append("")
    if found.winner.method == "source":
        lines.append(
            f"Recommended: no adaptation; nothing was better than the model as it is ({_about(found.winner)})."
        )
    else:
        lines.append(f"Recommended: {found.winner.label} ({_about(found.winner)}).")
    if (best := found.ordered_winner) is not None:
        condition = "but only while neighbours in your stream share classes: it uses the order of labels"
        lines.append(f"{best.label} is better still ({_about(best)}), {condition}.")
    return [*lines, CHECK_YOURS]


def _about(cell: "Cell") -> str:
    return f"{cell.error:.1f} % error" + ("" if cell.cost is None else f" at {cell.cost:.1f} times plain inference")


def _seeds(cells: Iterable["Cell"]) -> str:
    """How many seeds the numbers are means of.

    >>> from types import SimpleNamespace
    >>> _seeds([SimpleNamespace(seeds=[1])]), _seeds([SimpleNamespace(seeds=[1]), SimpleNamespace(seeds=[1, 2, 3])])
    ('one seed', 'one to 3 seeds')
    """
    counts = sorted({len(cell.seeds) for cell in cells})
    few, most = ("one" if count == 1 else str(count) for count in (counts[0], counts[-1]))
    return f"{few} seed{'' if few == 'one' else 's'}" if few == most else f"{few} to {most} seeds"


def _print_cells(cells: Iterable["Cell"]) -> None:
    from resitta.cli.listing import print_table  # noqa: PLC0415

    print_table(["method", "error (%)", "cost", "remark"], [_row(cell) for cell in cells])


def _row(cell: "Cell") -> list[str]:
    spread = "" if cell.spread is None else f" ± {cell.spread:.1f}"
    cost = "not measured" if cell.cost is None else f"{cell.cost:.1f} x"
    return [cell.label, f"{cell.error:.1f}{spread}", cost, "uses the order of labels" if cell.uses_label_order else ""]
