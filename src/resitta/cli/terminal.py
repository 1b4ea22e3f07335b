"""The terminal: lines of text, and progress bars with the time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from resitta.errors import require

Bar = Callable[[int, int], None]


def console() -> Any:
    """A rich console."""
    return require("rich.console", "cli").Console()


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is, without markup or line breaks of our own."""
    console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


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
