"""State files of adapters: the state, and the method, settings, options and source model it belongs to."""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from resitta._deprecated import rename
from resitta.checkpoint.atomic_write import write_atomically
from resitta.checkpoint.format import read, seal
from resitta.checkpoint.source_data import KIND, packed, unpacked
from resitta.checkpoint.values import check_values
from resitta.errors import BadState, UnsuitableModel
from resitta.method import COMMON, AdapterLike, create, get_method, list_methods
from resitta.monitor.guard import Guard, load_guard
from resitta.monitor.shadow.shadow import load_shadow
from resitta.training.drift_detector import DriftDetector
from resitta.training.source_statistics import SourceStatistics

logger = logging.getLogger(__name__)
A = TypeVar("A", bound=AdapterLike)
FORMAT = 1
ENTRIES = {"method": str, "settings": dict, "options": dict, "functions": list, "model": dict, "state": dict}
StatePath = str | os.PathLike[str]
OPTIONS = ("seed", "non_finite", "output", "precision", "cuda_graphs", "background", "classes", "shadow", "fallback")
"""The options that are saved as they are."""
CODE = "a function or a detector"
"""What a file names, but cannot hold."""
KEPT = ("seed", "precision", "non_finite", "guard", "shadow")
"""The options that an adapter keeps when it restores the file of another."""


def save(adapter: AdapterLike, path: StatePath, **more: Any) -> None:
    """Write everything about an adapter but its source model, atomically; `more` entries are kept beside it."""
    document = {**describe(adapter), **more}
    document["settings"] = {name: _packed(value) for name, value in document["settings"].items()}
    write_atomically(Path(path), seal({**document, "state": adapter.state_dict()}))


def restore(adapter: AdapterLike, path: StatePath) -> dict[str, Any]:
    """Continue from a file, and return what it holds. One that does not fit leaves the adapter unchanged.

    Method, settings, functions, output and normalisation must be those of the file. The adapter keeps its own seed
    (used by the next `reset`), precision, guard, shadow and treatment of non-finite images; a warning in the log names
    those that differ.
    """
    document = read_document(path)
    check_model(adapter, document, path)
    described = describe(adapter)
    saved, own = _requirements(document), _requirements(described)
    for name in own:
        if saved.get(name) != own[name]:
            found = f"saved with {name} {saved.get(name)}, this adapter has {own[name]}"
            raise BadState(f"{path} was {found}; use resitta.load(model, path)")
    adapter.load_state_dict(document["state"])
    _warn_of_differences(document, described, path)
    return document


def read_adapter(path: StatePath, functions: dict[str, Any], make: Callable[..., A]) -> A:
    """Read a file and return the adapter that `make(method, **options)` builds from it, in the saved state."""
    document = read_document(path)
    _check_functions([str(name) for name in document["functions"]], functions, path)
    adapter = _make(make, document, functions, path)
    check_model(adapter, document, path)
    adapter.load_state_dict(document["state"])
    return adapter


def load_state(adapter: AdapterLike, load: Callable[..., Any], state: Mapping[str, Any], strict: bool) -> Any:
    """Load a `state_dict` with torch's own `load`; one that does not fit leaves the adapter unchanged."""
    before = adapter.state_dict()
    try:
        fitted = load(state, strict)
        if "_extra_state" not in state:  # strict=False: guard and shadow know nothing of what was loaded
            load_guard(adapter, None)
            load_shadow(adapter, None)
        check_values(adapter)
    except Exception as error:
        load(before)
        reason = " ".join(str(error).split())
        raise BadState(f"the state does not fit this {adapter.method.name} adapter: {reason}") from error
    return fitted


def extra_state(adapter: AdapterLike) -> dict[str, Any]:
    """Return the counters, the random generator, and the state of guard and shadow."""
    state = {
        "method": adapter.method.name,
        "model": adapter.fingerprint.structure,
        "samples": adapter.samples,
        "batches": adapter.batches,
        "entropies": adapter.entropies,
        "generator": adapter.generator.get_state(),
    }
    if adapter.guard is not None:
        state["guard"] = adapter.guard.state()
    if adapter.shadow is not None:
        state["shadow"] = adapter.shadow.state(adapter.source)
    return state


def set_extra_state(adapter: AdapterLike, state: dict[str, Any]) -> None:
    """Undo `extra_state`."""
    if state["method"] != adapter.method.name:
        raise BadState(f"it was saved by method {state['method']!r}")
    if state["model"] != adapter.fingerprint.structure:
        raise BadState("it was saved with a model whose tensors have other names or shapes, or other classes")
    adapter.samples, adapter.batches = int(state["samples"]), int(state.get("batches", 0))
    adapter.entropies = state["entropies"].clone()
    adapter.generator.set_state(state["generator"].cpu())
    load_guard(adapter, state.get("guard"))
    load_shadow(adapter, state.get("shadow"))


def describe(adapter: AdapterLike) -> dict[str, Any]:
    """Describe what a state belongs to. Functions and detectors are stored by name only."""
    import resitta  # noqa: PLC0415  (the version lives in the package itself)

    settings = settings_of(adapter.method)
    options = {name: getattr(adapter.options, name) for name in OPTIONS}
    return {
        "format": FORMAT,
        "resitta": resitta.__version__,
        "method": adapter.method.name,
        "settings": _without_functions(settings),
        "options": {**_without_functions(options), "normalized": _normalized(adapter)},
        "guard": None if adapter.guard is None else dataclasses.asdict(adapter.guard.guard),
        "functions": [name for name, value in {**settings, **options}.items() if _is_code(value)],
        "model": {"structure": adapter.fingerprint.structure, "content": adapter.fingerprint.content},
    }


def read_document(path: StatePath) -> dict[str, Any]:
    """Read a file and check its format version and entries."""
    document = read(Path(path))
    found, version = document.get("format"), document.get("resitta")
    if isinstance(found, int) and found > FORMAT:
        raise BadState(f"{path} has format {found} of resitta {version}, this one reads up to {FORMAT}; upgrade it")
    wrong = [name for name, kind in ENTRIES.items() if not isinstance(document.get(name), kind)]
    if wrong:
        raise BadState(f"{path} has no {wrong[0]!r} of an adapter in it; name a file that adapter.save wrote")
    settings = present_names(document["method"], document["settings"])
    return document | {"settings": {name: _unpacked(value, path) for name, value in settings.items()}}


def settings_of(settings: Any) -> dict[str, Any]:
    """The values of a settings dataclass, such as a method, by name; of those that every method has, the unusual."""
    known = ((field, getattr(settings, field.name)) for field in dataclasses.fields(settings))
    return {field.name: value for field, value in known if field.name not in COMMON or value != field.default}


def present_names(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an older file by their present names; those of a method that is not known here stay as they are.

    >>> present_names("resitta", {"renew": 2.0, "lr": 0.1})
    {'reset_on_shift': 2.0, 'lr': 0.1}
    """
    return rename(settings, get_method(method).renamed, quietly=True) if method in list_methods() else dict(settings)


def check_model(adapter: AdapterLike, document: dict[str, Any], path: StatePath) -> None:
    """Raise BadState unless the model is the one that the state was saved with."""
    structure, content = (str(document["model"].get(name)) for name in ("structure", "content"))
    if structure != adapter.fingerprint.structure:
        raise BadState(f"{path} was saved with another model (other names or shapes); load it with that one")
    if content != adapter.fingerprint.content:
        raise BadState(f"{path} was saved with other weights or another precision of this model; load those first")


def _packed(value: Any) -> Any:
    """A setting as a file holds it."""
    return packed(value) if isinstance(value, SourceStatistics) else value


def _unpacked(value: Any, path: StatePath) -> Any:
    """Undo `_packed`. The model of statistics is that of the file, which is checked."""
    return unpacked(value, str(path)) if isinstance(value, dict) and KIND in value else value


def _requirements(document: dict[str, Any]) -> dict[str, str]:
    """What must be equal for one adapter to continue the state of another, as text."""
    options = {name: document["options"].get(name) for name in ("output", "normalized")}
    shared = {"method": document["method"], **document["settings"], **options}
    functions = dict.fromkeys(map(str, document["functions"]), "a function")
    return {**{name: repr(value) for name, value in shared.items()}, **functions}


def _warn_of_differences(document: dict[str, Any], own: dict[str, Any], path: StatePath) -> None:
    """Log the options that differ: they are not part of the state, and the adapter keeps its own."""
    saved, ours = ({**found["options"], "guard": found.get("guard")} for found in (document, own))
    for name in KEPT:
        values = saved.get(name), ours[name]
        if name == "guard" and not all(isinstance(value, dict) for value in values):
            continue  # a guard that only one of them has is logged where its state is loaded
        theirs, kept = _in_short(*values), _in_short(*values[::-1])
        if theirs != kept:
            logger.warning("%s was saved with %s %s, this adapter keeps its own: %s", path, name, theirs, kept)


def _in_short(value: Any, other: Any) -> str:
    """A value as text; of a guard's settings only those that differ from another's.

    >>> _in_short({"window": 9, "action": "warn"}, {"window": 8, "action": "warn"})
    'window=9'
    """
    if not isinstance(value, dict) or not isinstance(other, dict):
        return repr(value)
    words, others = ([f"{name}={setting!r}" for name, setting in each.items()] for each in (value, other))
    return ", ".join(word for word in words if word not in others)


def _is_code(value: object) -> bool:
    """Whether a value is `CODE`."""
    return callable(value) or isinstance(value, DriftDetector)


def _without_functions(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not _is_code(value)}


def _normalized(adapter: AdapterLike) -> tuple[list[float], list[float]] | None:
    mean, std = adapter.source.mean, adapter.source.std
    return None if mean is None or std is None else (mean.flatten().tolist(), std.flatten().tolist())


def _check_functions(needed: list[str], given: dict[str, Any], path: StatePath) -> None:
    for name in needed:
        if not _is_code(given.get(name)):
            raise BadState(f"{path} was saved with {CODE} as {name}; pass it again: load(model, path, {name}=...)")
    for name in given:
        if name not in needed:
            known = (
                f"only functions and detectors are passed again ({', '.join(needed)})"
                if needed
                else "it needs no functions"
            )
            raise BadState(f"{name} does not belong to {path}: {known}, all else is in the file; leave it out")


def _make(make: Callable[..., A], document: dict[str, Any], functions: dict[str, Any], path: StatePath) -> A:
    """Build the adapter that a file describes, in its initial state."""
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
