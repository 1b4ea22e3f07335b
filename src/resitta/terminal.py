"""What people see in a terminal: progress bars with the time left, tables, short reports."""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resitta.checks import check_method
from resitta.errors import BadData, BadSetting, require
from resitta.method import Method
from resitta.models import MODELS
from resitta.registry import get_method, list_methods

Bar = Callable[[int, int], None]


def console() -> Any:
    """The terminal, as rich sees it."""
    return require("rich.console", "cli").Console()


@contextmanager
def bars() -> Iterator[Callable[[str], Bar]]:
    """Progress bars: `with bars() as bar:` gives `bar("training")`, to be called as `(done, total)`."""
    rich = require("rich.progress", "cli")
    columns = (
        rich.TextColumn("{task.description:<22}"),
        rich.BarColumn(bar_width=None),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns) as progress:

        def bar(title: str) -> Bar:
            task = progress.add_task(title, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield bar


def print_methods() -> None:
    """List every method with what it needs and its settings."""
    table = require("rich.table", "cli").Table(show_lines=True)
    for heading in ("method", "what it does", "needs", "settings and defaults", "presets"):
        table.add_column(heading)
    for name in list_methods():
        cls = get_method(name)
        settings = ", ".join(f"{field.name}={field.default!r}" for field in dataclasses.fields(cls))
        summary = (cls.__doc__ or "").partition("\n")[0]
        table.add_row(name, summary, cls.needs.replace("_", " "), settings or "none", ", ".join(cls.presets))
    console().print(table)


def print_models() -> None:
    """List the source networks with what they are for."""
    table = require("rich.table", "cli").Table()
    for heading in ("model", "what it is", "classes", "image side", "paper's table"):
        table.add_column(heading)
    for entry in MODELS.values():
        row = (entry.name, entry.description, str(entry.classes), str(entry.image_size), str(entry.table or ""))
        table.add_row(*row)
    console().print(table)


def print_check(
    method: Method,
    *,
    model: str | None = None,
    checkpoint: Path | None = None,
    data: Path | None = None,
    size: int | None = None,
    device: str = "cpu",
) -> None:
    """Run the conformance suite, on a model and images of the user's if they are named, and list what was checked."""
    passed = check_method(method, device=device, **_checked_with(model, checkpoint, data, size))
    for name in passed:
        console().print(f"[green]passed[/] {name.replace('_', ' ')}", highlight=False)
    console().print(f"{len(passed)} passed, 0 failed", highlight=False)


def _checked_with(model: str | None, checkpoint: Path | None, data: Path | None, size: int | None) -> dict[str, Any]:
    """The model and the images that the suite shall use in place of its own."""
    from resitta.models import create  # noqa: PLC0415
    from resitta.streams.corrupted import evenly  # noqa: PLC0415
    from resitta.streams.datasets import open_images  # noqa: PLC0415

    if model is None:
        if checkpoint or data or size:
            raise BadSetting("--checkpoint, --data and --size belong to a model of yours; name it with --model")
        return {}
    side = size or (MODELS[model].image_size if model in MODELS else 32)
    options: dict[str, Any] = {"model": create(model, checkpoint), "shape": (3, side, side)}
    if data is not None:
        images = evenly(open_images(data, **({} if size is None else {"size": size})), 256)
        options["images"] = images.read(range(len(images))).float().div_(255)
    return options


def import_method(method: str) -> str:
    """Run the user's file if one is named (`path/to/file.py:name`) and return the method's name."""
    path, colon, name = method.rpartition(":")
    if not colon:
        return method
    if not Path(path).is_file():
        raise BadData(f"{path} is no file; give path/to/file.py:name, or the name of a registered method")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise BadData(f"{path} is no Python file; give path/to/file.py:name")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return name
