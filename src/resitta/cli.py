"""The command line: `resitta demo`, `resitta methods`, `resitta check`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resitta.errors import ResittaError, require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; trouble that we know of ends with one sentence and exit code 2, not with a traceback."""
    try:
        app = build()
        app(arguments, result_action="return_value")
    except ResittaError as error:
        sys.stderr.write(f"resitta: {error}\n")
        return 2
    except SystemExit as stop:  # the command line itself was wrong; the reason has been printed
        return 2 if stop.code else 0
    except KeyboardInterrupt:
        sys.stderr.write("resitta: interrupted\n")
        return 130
    return 0


def build() -> Any:
    """Make the application; the packages it needs come with the extra `cli`."""
    cyclopts = require("cyclopts", "cli")
    require("rich", "cli")
    import resitta  # noqa: PLC0415  (a lighter start for --help)

    app = cyclopts.App(name="resitta", help=resitta.__doc__.partition("\n")[0], version=resitta.__version__)
    app.command(demo)
    app.command(methods)
    app.command(check)
    return app


def demo(*, out: Path = Path("resitta-demo"), seed: int = 1, samples: int = 4000, retrain: bool = False) -> None:
    """See a real model recover: handwritten digits, 15 corruptions one after the other, five methods, one page.

    Trains a small BatchNorm network on clean digits (once; it is cached), then lets a corrupted, temporally correlated
    stream pass through Source, BN, TENT, RoTTA and ResiTTA, prints the errors and writes a page with figures.

    Parameters
    ----------
    out
        The folder for the page and the records.
    seed
        Fixes the stream's order and all randomness of the methods.
    samples
        Images per corruption. With only a few hundred the statistics have no time to follow.
    retrain
        Train the source network anew even if a cached one is there.
    """
    from resitta.demo.run import run_demo  # noqa: PLC0415

    run_demo(out, seed=seed, samples=samples, retrain=retrain)


def methods() -> None:
    """List the methods, what they need, and their settings with defaults."""
    from resitta.terminal import print_methods  # noqa: PLC0415

    print_methods()


def check(method: str) -> None:
    """Run the conformance suite on a method.

    Parameters
    ----------
    method
        A registered name such as tent, or a file of your own that registers one: path/to/file.py:name.
    """
    from resitta.terminal import print_check  # noqa: PLC0415

    print_check(method)


if __name__ == "__main__":
    sys.exit(main())
