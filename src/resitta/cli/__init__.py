"""The command line. `resitta --help` lists the commands; each has its own `--help`."""

import sys
from collections.abc import Sequence
from typing import Any

from resitta.errors import ResittaError, require

GO_ON = {
    "bench": "finished runs are kept; repeat the command to continue",
    "reproduce": "finished runs are kept; repeat the command to continue",
    "corrupt": "written files are kept; repeat the command to continue",
    "data": "repeat the command to resume the download",
    "demo": "corrupted images and a trained network are kept; repeat the command to run the methods",
    "serve": "with --state, repeat the command to continue from the saved state",
}
"""How to continue a command after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a `ResittaError` ends with one sentence and exit code 2, not with a traceback."""
    try:
        build()(arguments, result_action="return_value")
    except ResittaError as error:
        sys.stderr.write(f"resitta: {error}\n")
        return 2
    except SystemExit as stop:  # the command line itself was wrong; the reason has been printed
        return 2 if stop.code else 0
    except KeyboardInterrupt:
        given = sys.argv[1:] if arguments is None else arguments
        advice = GO_ON.get(given[0] if given else "", "")
        sys.stderr.write(f"resitta: interrupted{'; ' if advice else ''}{advice}\n")
        return 130
    return 0


def build() -> Any:
    """Make the application; the packages it needs come with the extra `cli`."""
    cyclopts = require("cyclopts", "cli")
    require("rich", "cli")
    import resitta  # noqa: PLC0415  (inside of `main`, which handles Ctrl-C)
    from resitta.cli import bench, data, export, library, recommend, serve, source  # noqa: PLC0415

    app = cyclopts.App(
        name="resitta",
        help=resitta.__doc__.partition("\n")[0],
        version=resitta.__version__,
        suppress_keyboard_interrupt=False,  # `main` says how to continue
    )
    commands: list[Any] = [library.demo, library.methods, recommend.recommend, library.check, library.models]
    commands += [source.prepare, export.export]
    commands += [bench.bench, bench.reproduce, bench.report, data.corrupt, serve.serve]
    fetching = cyclopts.App(name="data", help="Download the public corrupted data sets.")
    fetching.command(data.fetch)
    for command in (*commands, fetching):
        app.command(command)
    app.register_install_completion_command(help="Install tab completion for commands and options (bash, zsh, fish).")
    return app
