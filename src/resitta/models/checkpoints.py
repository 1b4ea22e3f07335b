"""Read public checkpoints safely and load them into a model.

Only tensors are ever read: safetensors, or `torch.load(weights_only=True)`, which refuses code.
Normalisation belongs to the model, never to the checkpoint: buffers such as `mu` and `sigma` are dropped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from resitta.errors import BadData, MissingExtra, require

Model = TypeVar("Model", bound=nn.Module)

# Keys under which training scripts keep the weights beside the optimiser's state and the like.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
# Left in the names by DataParallel, torch.compile, Normalised and Sequential(normaliser, model).
PREFIXES = ("module.", "_orig_mod.", "model.", "0.", "1.")
NORMALISER = re.compile(r"(module\.|model\.)*(0\.|normali[sz]e\.)?(mu|sigma|mean|std)")


def load_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read a checkpoint's weights under their bare names, on the CPU.

    Files that end in `.safetensors` are read as such, all others as written by `torch.save`.

    >>> load_checkpoint("no/such/file.pt")
    Traceback (most recent call last):
        ...
    resitta.errors.BadData: no checkpoint at no/such/file.pt; download it first or correct the path
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise BadData(f"no checkpoint at {path}; download it first or correct the path")
    return tidy(_read(path), origin=str(path))


def load_into(model: Model, source: str | Path | Mapping[str, object]) -> Model:
    """Load a checkpoint, or a state_dict already in memory, into the model and return the model.

    Every weight must be there, with the right shape; only `num_batches_tracked` and the normalisation may be
    missing. A model that does not fit is left as it was.

    >>> state = {"module.weight": torch.ones(1, 2), "module.bias": torch.zeros(1)}
    >>> load_into(nn.Linear(2, 1), state)(torch.ones(1, 2)).item()
    2.0
    """
    if isinstance(source, Mapping):
        origin, state = "the state_dict", tidy(source, origin="the state_dict")
    else:
        origin, state = str(source), load_checkpoint(source)
    own = model.state_dict()
    prefix = _shared_prefix(own)
    state = {prefix + name: value for name, value in state.items()}
    if misfits := _misfits(state, own, optional=_optional(model)):
        raise BadData(
            f"{origin} does not fit {type(model).__name__}: {misfits}; "
            "build the model with the architecture and number of classes it was trained with"
        )
    model.load_state_dict(state, strict=False)
    return model


def tidy(loaded: object, *, origin: str) -> dict[str, Tensor]:
    """Unwrap a loaded checkpoint to bare names: no wrapping dict, no prefix, no normaliser buffers.

    A prefix is removed only if every name starts with it.

    >>> state = {"module.mu": torch.zeros(3), "module.fc.module.bias": torch.zeros(1)}
    >>> list(tidy({"net": state, "epoch": 3}, origin="example.pt"))
    ['fc.module.bias']
    """
    if isinstance(loaded, Mapping):
        wrapped = [loaded[key] for key in WRAPPERS if isinstance(loaded.get(key), Mapping)]
        loaded = wrapped[0] if wrapped else loaded
    if not isinstance(loaded, Mapping) or not _is_state(loaded):
        raise BadData(f"{origin} holds no weights by name; save it anew with torch.save(model.state_dict(), path)")
    start = len(_shared_prefix(loaded))
    return {name[start:]: value for name, value in loaded.items() if not NORMALISER.fullmatch(name)}


def dequantise(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Restore float32 weights from half precision, or from int8 with one scale per output channel.

    The scales of `name` are stored as `name::scale`.
    """
    weights = {name: value for name, value in state.items() if not name.endswith("::scale")}
    for name, value in weights.items():
        if (scale := state.get(f"{name}::scale")) is not None:
            weights[name] = value.float() * scale.float().view(-1, *[1] * (value.ndim - 1))
        elif value.is_floating_point():
            weights[name] = value.float()
    return weights


def _read(path: Path) -> object:
    try:
        if path.suffix == ".safetensors":
            return dequantise(require("safetensors.torch", "bench").load_file(path))
        return torch.load(path, map_location="cpu", weights_only=True)
    except MissingExtra:
        raise
    except Exception as error:  # a damaged or hostile file can make a parser raise anything
        raise BadData(
            f"{path} cannot be read as tensors alone: download it again if it is damaged, "
            "or save it anew with torch.save(model.state_dict(), path) if it holds Python objects"
        ) from error


def _is_state(loaded: Mapping[object, object]) -> bool:
    named = all(isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items())
    return named and len(loaded) > 0


def _shared_prefix(names: Iterable[str]) -> str:
    weights = [name for name in names if not NORMALISER.fullmatch(name)]
    prefix = ""
    while weights:
        longer = [prefix + p for p in PREFIXES if all(name.startswith(prefix + p) for name in weights)]
        if not longer:
            break
        prefix = longer[0]
    return prefix


def _optional(model: nn.Module) -> set[str]:
    names = (name for name, _ in model.named_buffers())
    return {name for name in names if name.endswith("num_batches_tracked") or NORMALISER.fullmatch(name)}


def _misfits(state: Mapping[str, Tensor], own: Mapping[str, Tensor], *, optional: set[str]) -> str:
    missing = [name for name in own if name not in state and name not in optional]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    return ", ".join(f"{kind}: {_first(names)}" for kind, names in kinds.items() if names)


def _first(names: Sequence[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
