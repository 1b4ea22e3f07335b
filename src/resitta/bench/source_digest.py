"""Digests of source code: a run of changed code is another run.

A digest covers the file that defines a class or function and the user's files it imports from. The rest of this
library and installed packages are covered by their versions: the library's is part of the identity of a run, those of
Python, torch and numpy are in its environment.
"""

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from resitta.method import Method
from resitta.models.external import find_function
from resitta.models.user_code import loaded_digest, short_digest
from resitta.models.zoo import is_own_function

PLAIN = (bool, int, float, str, type(None))
COVERED = ("builtins", "resitta", "torch")
"""Packages whose code goes by their versions."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@functools.cache  # later changes of the file do not change an imported class
def method_source(cls: type[Method]) -> str | None:
    """Digest the files that define a method: those of its class and of the methods it inherits from.

    For a method from elsewhere, also the files of the same package or folder that its file takes classes, functions or
    modules from, directly or through others. None if there is no file, as in an interactive session.

    >>> from resitta.methods import Source, Tent
    >>> method_source(Tent) == method_source(Tent) != method_source(Source)
    True
    """
    bases = [base for base in cls.__mro__ if issubclass(base, Method) and base is not Method]
    return _digest(bases)


def model_source(model: str | nn.Module) -> dict[str, str | None]:
    """What the identity of a run says of a model's code: nothing where its name says it all.

    A function of the user's is covered as a method is. A module that was handed over is covered by the files of the
    classes in it that are not torch's, by its printed form, and by the buffers that are not in its `state_dict`.

    >>> model_source("wrn16x1")
    {}
    """
    if isinstance(model, nn.Module):
        return {"model_source": _module_digest(model)}
    if not is_own_function(model):
        return {}
    module, function = find_function(model)
    return {"model_source": _digest([module, *([function] if isinstance(function, type | FunctionType) else [])])}


def described(value: Any) -> Any:
    """A setting as a plain JSON value. Functions go by name and, unless they are this library's, by a digest.

    The digest is that of its file, where there is one, its source, its defaults and the plain values of its closure.

    >>> described((0.5, min)), described(functools.partial(max, 1))
    ([0.5, 'min'], 'partial(max, 1)')
    """
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [described(item) for item in value]
    if isinstance(value, functools.partial):
        named = [f"{key}={described(item)}" for key, item in value.keywords.items()]
        return f"partial({', '.join(map(str, [described(value.func), *map(described, value.args), *named]))})"
    if isinstance(value, FunctionType | type):
        known = str(value.__module__).partition(".")[0] in COVERED
        digest = _function_digest(value) if isinstance(value, FunctionType) else _digest([value])
        return value.__qualname__ if known or digest is None else f"{value.__qualname__}@{digest[:8]}"
    form: Any = type(value).__repr__
    if form is object.__repr__:  # it would print an address
        return f"{described(type(value))}{_brief(vars(value) if hasattr(value, '__dict__') else {})}"
    return getattr(value, "__qualname__", ADDRESS.sub("", repr(value)))


@functools.lru_cache(maxsize=256)
def _function_digest(function: FunctionType) -> str:
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(_plain_code(function.__code__))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = {name: _brief(cell.cell_contents) for name, cell in cells.items() if cell != CellType()}
    values = _brief([function.__defaults__, function.__kwdefaults__])
    return short_digest(f"{_digest([function])}{text}{values}{closure}".encode())


def _brief(value: Any) -> Any:
    """Plain values as they are, containers of them too, anything else by its type."""
    if isinstance(value, tuple | list):
        return [_brief(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _brief(item) for key, item in value.items()}
    return value if isinstance(value, PLAIN) else type(value).__qualname__


def _plain_code(code: CodeType) -> list[Any]:
    """The parts of compiled code that decide what it does, without its place in a file."""
    inner = [_plain_code(item) if isinstance(item, CodeType) else item for item in code.co_consts]
    return [code.co_code, code.co_names, inner]


def _module_digest(model: nn.Module) -> str | None:
    kinds = {type(part) for part in model.modules()}
    files = _digest(kind for kind in kinds if kind.__module__.partition(".")[0] not in COVERED)
    if files is None:
        return None
    kept = model.state_dict().keys()
    digest = hashlib.sha256(f"{files}{model}".encode())
    for name, buffer in model.named_buffers():
        if name not in kept:
            digest.update(f"{name}{buffer.detach().cpu().tolist()}".encode())
    return digest.hexdigest()[:12]


def _digest(things: Iterable[object]) -> str | None:
    """Digest the files of modules, classes and functions, and of their neighbours; None if one has no file."""
    homes = [_home(thing) for thing in things]
    if any(home is None for home in homes):
        return None
    names = {name for home in homes for name in _neighbours(str(home))}
    digests = [_file_digest(name) for name in names]
    return None if None in digests else short_digest("".join(sorted(map(str, digests))).encode())


def _file_digest(name: str) -> str | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    try:
        return loaded_digest(name) or (file and short_digest(Path(file).read_bytes()))
    except OSError:
        return None


def _neighbours(name: str) -> set[str]:
    """A module, and the modules of its package or folder whose classes, functions or names it uses."""
    found, waiting = {name}, [name]
    while waiting and name.partition(".")[0] not in COVERED:
        used = {_home(value) for value in list(vars(sys.modules[waiting.pop()]).values())}
        new = {other for other in used if other is not None and other not in found and _together(name, other)}
        found |= new
        waiting += new
    return found


def _home(value: object) -> str | None:
    """The name of the module that holds a class or function, or is the value itself; None if there is none."""
    if isinstance(value, ModuleType):
        return value.__name__
    module = str(getattr(value, "__module__", "")) if isinstance(value, type | FunctionType) else ""
    # A class that was sent here from the main module of another process has no file here.
    if module == "__main__" and isinstance(value, type) and vars(sys.modules[module]).get(value.__name__) is not value:
        return None
    return module if module in sys.modules else None


def _together(name: str, other: str) -> bool:
    files = [getattr(sys.modules.get(module), "__file__", None) for module in (name, other)]
    if not all(files) or other.partition(".")[0] in COVERED:
        return False
    same_package = "." in name and name.partition(".")[0] == other.partition(".")[0]
    return same_package or Path(str(files[0])).parent == Path(str(files[1])).parent
