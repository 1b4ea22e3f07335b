"""`resitta.load(model, path)`: an adapter that goes on where another was saved."""

from collections.abc import Callable
from typing import Any

from torch import nn

from resitta.adapter import Adapter
from resitta.checkpoint.io import StatePath, check_model, read_document
from resitta.errors import BadState, UnsuitableModel
from resitta.monitor.guard import Guard
from resitta.registry import create


def load(model: nn.Module, path: StatePath, **functions: Callable[..., Any]) -> Adapter:
    """Make an adapter from a file that `adapter.save` wrote; it continues bit for bit where that one stopped.

    Args:
        model: the same source model, with the same weights, as the saved adapter's; it is not in the file.
        path: the file.
        functions: what a file cannot hold, by name, if the adapter had it: `strong_view=...`, `output=...`.

    Raises:
        BadState: the file is missing, damaged, of a newer format, or belongs to another model.
        UnsuitableModel: the model lacks what the saved method needs.

    >>> import tempfile, torch, resitta
    >>> model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    >>> adapter, images = resitta.adapt(model, "tent"), torch.rand(8, 3, 2, 2)
    >>> _ = adapter(images)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     adapter.save(f"{folder}/state.safetensors")
    ...     other = load(model, f"{folder}/state.safetensors")
    >>> torch.equal(adapter(images), other(images))
    True
    """
    document = read_document(path)
    _check_functions([str(name) for name in document["functions"]], functions, path)
    adapter = _make(model, document, functions, path)
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


def _make(model: nn.Module, document: dict[str, Any], functions: dict[str, Any], path: StatePath) -> Adapter:
    """Build the adapter that a file describes, in its state before the first image."""
    options = {name: functions[name] for name in functions if name == "output"}
    settings = {name: functions[name] for name in functions if name != "output"}
    try:
        method = create(document["method"], **document["settings"], **settings)
        guard = False if document["guard"] is None else Guard(**document["guard"])
        return Adapter(model, method, **document["options"], **options, guard=guard)
    except UnsuitableModel:
        raise
    except Exception as error:  # the seal keeps accidents out; a file made by hand can describe anything
        advice = "if the method is your own, import it first"
        raise BadState(f"{path} describes an adapter that cannot be made here ({error}); {advice}") from error
