"""Hooks of the site's build: a page for each registered method, the changelog, the notebooks, blocks of formulas."""

import inspect
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from resitta import Method, create, list_methods
from resitta.method import takes_source
from resitta.methods.describe import describe

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta")
"""The order of the paper's tables; further methods follow."""
FORMULAS = ROOT / "docs" / "methods" / "formulas"
NOTEBOOKS = ROOT / "examples" / "notebooks"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the methods to the navigation, and the language `formula` to fenced blocks."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "formula", "class": "formula", "format": formula})
    (methods,) = [entry["Methods"] for entry in config.nav or [] if "Methods" in entry]
    methods[1:1] = [{get_method(name).title or name: f"methods/{name}.md"} for name in names()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the notebooks as files to download."""
    for name in names():
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(get_method(name))))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.name}", content=notebook.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table of methods where a page asks for it; let links to notebooks lead to those of the site."""
    markdown = markdown.replace("](../../examples/notebooks/", "](../notebooks/")
    return markdown.replace("<!-- methods -->", method_table())


def names() -> list[str]:
    """All registered methods, in the order of the paper's tables."""
    return sorted(list_methods(), key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def get_method(name: str) -> type[Method]:
    """The class of a registered method."""
    return type(create(name))


def method_table() -> str:
    """The overview of all methods."""
    lines = ["| method | what it does | needs |", "|---|---|---|"]
    for name in names():
        about = describe(get_method(name))
        title = get_method(name).title or name
        lines.append(f"| [{title}]({name}.md)<br>`{name}` | {about['summary']} | {about['needs']} |")
    return "\n".join(lines)


def method_page(method: type[Method]) -> str:
    """One page: summary, formula, use, settings, presets, citation."""
    about, file = describe(method), FORMULAS / f"{method.name}.md"
    if not file.exists():
        raise PluginError(f"{method.name} has no formula: write {file.relative_to(ROOT)}")
    rest = inspect.cleandoc(method.__doc__ or "").partition("\n")[2].strip()
    parts = [
        f"# {method.title or method.name}\n\n{about['summary']}",
        f"Needs {about['needs']}. Class `resitta.methods.{method.__name__}`, source "
        f"`src/{method.__module__.replace('.', '/')}.py`.",
        f'```python\nadapter = resitta.adapt(model, "{method.name}"{", source=loader" * takes_source(method)})\n```',
        f"## How it works\n\n{file.read_text('utf-8').strip()}",
        f"## Settings\n\n{settings(about)}" + (f"\n\n{rest}" if rest else ""),
        f"## Presets\n\n{presets(about)}",
    ]
    if about["paper"]:
        parts.append(f"## Citation\n\n{about['paper']}")
    parts.append("Errors of all methods: [results](../benchmark/results.md). Speed: [performance](../performance.md).")
    return "\n\n".join(parts)


def settings(about: dict[str, Any]) -> str:
    """The settings as a table."""
    if not about["settings"]:
        return "This method has no settings."
    lines = ["| setting and default | meaning | values |", "|---|---|---|"]
    for one in about["settings"]:
        values = ", ".join(filter(None, (one["type"], one["range"])))
        lines.append(f"| `{one['name']}={one['default']}` | {one['meaning']} | {values} |")
    return "\n".join(lines)


def presets(about: dict[str, Any]) -> str:
    """The presets as a table, or the sentence that they change nothing."""
    found = {name: values for name, values in about["presets"].items() if values}
    if not found:
        return f"{', '.join(f'`{name}`' for name in about['presets'])}: the defaults."
    lines = ["| preset | settings |", "|---|---|"]
    for name, values in about["presets"].items():
        shown = ", ".join(f"`{key}={value}`" for key, value in values.items()) or "the defaults"
        lines.append(f"| `{name}` | {shown} |")
    return "\n".join(lines)


def formula(source: str, *_: Any, **__: Any) -> str:
    """A block of formulas, a line each: `x_t` or `x_{bank}` is an index, `x^2` or `x^{-a}` a power."""
    lines = []
    for line in source.strip().splitlines():
        text = escape(line)
        text = re.sub(r"_\{([^}]*)\}|_(\w)", lambda m: f"<sub>{m[1] or m[2]}</sub>", text)
        text = re.sub(r"\^\{([^}]*)\}|\^(\w)", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
        lines.append(f"<div>{text}</div>")
    return f'<div class="formula">{"".join(lines)}</div>'
