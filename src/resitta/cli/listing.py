"""What the listing commands print: methods and models, for people or as JSON."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from resitta.cli.terminal import console
from resitta.errors import require
from resitta.method import get_method, list_methods
from resitta.methods.describe import describe
from resitta.models import MODELS
from resitta.models.user_code import load_method


def print_methods(method: str | None = None, *, as_json: bool = False) -> None:
    """List every method, or show all that is known of one."""
    if method is not None:
        found = describe(get_method(load_method(method)))
        return _print_json(found) if as_json else _print_method(found)
    every = [describe(get_method(name)) for name in list_methods()]
    return _print_json(every) if as_json else _print_list(every)


def print_models(*, as_json: bool = False) -> None:
    """List the source networks with what they are for."""
    columns = {
        "name": "model",
        "description": "what it is",
        "classes": "classes",
        "image_size": "image side",
        "table": "paper's table",
    }
    rows = [{key: getattr(entry, key) for key in columns} for entry in MODELS.values()]
    if as_json:
        return _print_json(rows)
    return print_table(list(columns.values()), [[_words(v, none="") for v in row.values()] for row in rows])


def _print_list(methods: Sequence[Mapping[str, Any]]) -> None:
    rows = [[method["name"], method["summary"], method["needs"]] for method in methods]
    print_table(["method", "what it does", "needs"], rows)
    _say("resitta methods NAME shows the settings, presets and paper of a method.")


def _print_method(method: Mapping[str, Any]) -> None:
    _say(f"{method['name']}: {method['summary']}")
    presets = ", ".join(_preset(name, values) for name, values in method["presets"].items())
    for title, text in (("needs", method["needs"]), ("paper", method["paper"]), ("presets", presets)):
        if text:
            _say(f"{title}: {text}")
    if not method["settings"]:
        return _say("settings: none")
    rows = []
    for setting in method["settings"]:
        takes = ", ".join(filter(None, (setting["type"], setting["range"])))
        rows.append([setting["name"], _words(setting["default"]), takes, setting["meaning"]])
    return print_table(["setting", "default", "takes", "meaning"], rows)


def _preset(name: str, values: Mapping[str, Any]) -> str:
    """A preset with what it changes: imagenet (eta=0.05)."""
    changes = ", ".join(f"{key}={_words(value)}" for key, value in values.items())
    return f"{name} ({changes})" if changes else name


def _words(value: Any, *, none: str = "none") -> str:
    if value is None:
        return none
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns that wrap where the terminal is narrow, the first one excepted, and never leave anything out."""
    table = require("rich.table", "cli").Table(box=require("rich.box", "cli").SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)


def _say(text: str) -> None:
    console().print(text, markup=False, highlight=False)


def _print_json(content: Any) -> None:
    """Print data for another program: no colours, no wrapping."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
