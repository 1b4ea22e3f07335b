"""What people see in a terminal: progress bars with the time left, short reports."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resitta.conformance import check_method
from resitta.errors import BadSetting, require
from resitta.method import Method

Bar = Callable[[int, int], None]


def console() -> Any:
    """The terminal, as rich sees it."""
    return require("rich.console", "cli").Console()


@contextmanager
def bars() -> Iterator[Callable[[str], Bar]]:
    """Progress bars: `with bars() as bar:` gives `bar("training")`, to be called as `(done, total)`."""
    require("rich", "cli")
    from rich import progress as rich  # noqa: PLC0415

    class Times(rich.ProgressColumn):
        """How long it has taken and how long it will."""

        def render(self, task: rich.Task) -> str:
            return times(task.finished_time if task.finished else task.elapsed, task.time_remaining)

    columns = (
        rich.TextColumn("{task.description:<22}"),
        rich.BarColumn(bar_width=None),
        rich.TaskProgressColumn(),
        Times(),
    )
    with rich.Progress(*columns) as progress:

        def bar(title: str) -> Bar:
            task = progress.add_task(title, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield bar


def times(elapsed: float | None, left: float | None) -> str:
    """Say how long something has taken and how long it will.

    >>> times(30.4, 0.0), times(3725, 61), times(0.2, None)
    ('30 s, 0 s left', '1 h 2 min, 1 min 1 s left', '0 s')
    """
    return ", ".join([duration(elapsed or 0), *([] if left is None else [f"{duration(left)} left"])])


def duration(seconds: float) -> str:
    """Write a time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


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
    from resitta.data.corrupted import evenly  # noqa: PLC0415
    from resitta.data.datasets import open_images  # noqa: PLC0415
    from resitta.models import MODELS, create  # noqa: PLC0415

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
