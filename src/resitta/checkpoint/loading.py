"""The adapter that a state file describes."""

from collections.abc import Callable
from typing import Any, TypeVar

from resitta.checkpoint.io import StatePath, check_model, read_document
from resitta.errors import BadState, UnsuitableModel
from resitta.method import AdapterLike, create
from resitta.monitor.guard import Guard

A = TypeVar("A", bound=AdapterLike)


def read_adapter(path: StatePath, functions: dict[str, Any], make: Callable[..., A]) -> A:
    """Read a file; return what `make(method, **options)` makes of it, in the state that was saved."""
    document = read_document(path)
    _check_functions([str(name) for name in document["functions"]], functions, path)
    adapter = _make(make, document, functions, path)
    check_model(adapter, document, path)
    adapter.load_state_dict(document["state"])
    return adapter


def _check_functions(needed: list[str], given: dict[str, Any], path: StatePath) -> None:
    for name in needed:
        if not callable(given.get(name)):
            raise BadState(f"{path} was saved with a function as {name}; pass it again: load(model, path, {name}=...)")
    for name in given:
        if name not in needed:
            known = f"only functions are passed again ({', '.join(needed)})" if needed else "it needs no functions"
            raise BadState(f"{name} does not belong to {path}: {known}, all else is in the file; leave it out")


def _make(make: Callable[..., A], document: dict[str, Any], functions: dict[str, Any], path: StatePath) -> A:
    """Build the adapter that a file describes, in its state before the first image."""
    options = {name: functions[name] for name in functions if name == "output"}
    settings = {name: functions[name] for name in functions if name != "output"}
    try:
        method = create(document["method"], **document["settings"], **settings)
        guard = False if document["guard"] is None else Guard(**document["guard"])
        return make(method, **document["options"], **options, guard=guard)
    except UnsuitableModel:
        raise
    except Exception as error:  # the seal keeps accidents out; a file made by hand can describe anything
        advice = "if the method is your own, import it first"
        raise BadState(f"{path} describes an adapter that cannot be made here ({error}); {advice}") from error
