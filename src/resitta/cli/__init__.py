"""The command line. `resitta --help` lists the commands; each has a `--help` of its own."""

import sys
from collections.abc import Sequence
from typing import Any

from resitta.errors import ResittaError, require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; trouble that we know of ends with one sentence and exit code 2, not with a traceback."""
    try:
        build()(arguments, result_action="return_value")
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
    import resitta  # noqa: PLC0415  (a lighter start when the extra is missing)
    from resitta.cli import bench, data, library, serve  # noqa: PLC0415

    app = cyclopts.App(name="resitta", help=resitta.__doc__.partition("\n")[0], version=resitta.__version__)
    commands: list[Any] = [library.demo, library.methods, library.check, library.models]
    commands += [bench.bench, bench.reproduce, bench.report, data.corrupt, serve.serve]
    fetching = cyclopts.App(name="data", help="Get the public corrupted data sets.")
    fetching.command(data.fetch)
    for command in (*commands, fetching):
        app.command(command)
    return app
