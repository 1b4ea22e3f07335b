"""The user's Python files, named on the command line: executed once, and importable in worker processes."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from resitta.errors import BadData, UnknownName, near
from resitta.method import forget, get_method, list_methods

T = TypeVar("T")
_loaded: dict[str, tuple[Path, str]] = {}
"""The files that were run, by the names of their modules, each with the digest of what was run."""


def load_file(path: str | Path) -> ModuleType:
    """Run a Python file and return it as a module; run it again only when its content has changed.

    The module's name holds a digest of the path: a file called random.py hides nothing, and every process that loads
    the same file gets the same name, so that instances of its classes can be pickled.
    """
    path = Path(path).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise BadData(f"{path} is no Python file; give path/to/file.py:name")
    content = path.read_bytes()
    name, digest = f"resitta_user_{path.stem}_{short_digest(str(path).encode(), 8)}", short_digest(content)
    if _loaded.get(name) == (path, digest):
        return sys.modules[name]
    module = sys.modules[name] = _new_module(name, path)
    forget(name)
    _loaded[name] = path, digest
    try:
        # Compiled from what was read: Python's cache of bytecode misses an edit within the same second.
        exec(compile(content, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name], _loaded[name]
        raise
    return module


def load_method(method: str) -> str:
    """Return the name of a method; `path/to/file.py:name` runs the file, which registers it.

    >>> load_method("tent")
    'tent'
    """
    path, colon, name = method.rpartition(":")
    if not colon:
        if method.endswith(".py") and Path(method).is_file():
            advice = f"name the method in it: {method}:NAME, as in @resitta.register('NAME')"
            raise UnknownName(f"{method} is a file; {advice}")
        return method
    module = load_file(path)
    own = [known for known in list_methods() if get_method(known).__module__ == module.__name__]
    if name not in own:
        known = near(name, own) if own else f"Put @resitta.register({name!r}) above its class."
        raise UnknownName(f"{path} registers no method {name!r}. {known}")
    return name


def loaded_digest(module: str) -> str | None:
    """The digest of the content under which a module was run by `load_file`; None for any other module."""
    return _loaded[module][1] if module in _loaded else None


def with_files(function: Callable[..., T], values: dict[str, Any], *objects: object) -> tuple[Any, ...]:
    """What a `__reduce__` returns so that `function(**values)` also works where the user's files were not run yet.

    `objects` are those whose classes or functions may come from such files.
    """
    modules = {module for thing in objects for module in _modules_of(thing)}
    files = tuple(_loaded[module] for module in sorted(modules & set(_loaded)))
    return _restore, (_Files(files), function, values)


class _Files:
    """Executes files when unpickled; it is pickled first, so that they run before what needs them."""

    def __init__(self, files: tuple[tuple[Path, str], ...]) -> None:
        self.files = files

    def __reduce__(self) -> tuple[Any, ...]:
        return _run_all, (self.files,)


def _run_all(files: tuple[tuple[Path, str], ...]) -> None:
    for path, digest in files:
        module = load_file(path)
        if loaded_digest(module.__name__) != digest:
            raise BadData(f"{path} has changed since the runs were asked for; give the same command again")


def _restore(_: None, function: Callable[..., T], values: dict[str, Any]) -> T:
    return function(**values)


def _modules_of(thing: object) -> set[str]:
    """The modules that hold the class, the function, or the function of a `partial`."""
    if isinstance(thing, partial):
        return {module for part in (thing.func, *thing.args, *thing.keywords.values()) for module in _modules_of(part)}
    return {cls.__module__ for cls in type(thing).__mro__} | {str(getattr(thing, "__module__", ""))}


def _new_module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise BadData(f"{path} is no Python file; give path/to/file.py:name")
    return importlib.util.module_from_spec(spec)


def short_digest(content: bytes, length: int = 12) -> str:
    """The first characters of a SHA-256."""
    return hashlib.sha256(content).hexdigest()[:length]
