"""The exception hierarchy: catch `ResittaError` for all of them, or a subclass for one kind of error.

Every message says what was wrong, what was found, and what to do about it.

>>> issubclass(BadImages, ResittaError) and issubclass(BadImages, ValueError)
True
"""

import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[2]
BUILT_FOR_TORCH = ("torch", "torchvision", "torchaudio")


class ResittaError(Exception):
    """Everything this library raises on purpose."""


class UnsuitableModel(ResittaError, ValueError):
    """The model lacks what the method needs, such as BatchNorm layers with running statistics."""


class UnknownName(ResittaError, LookupError):
    """No method, setting, preset, corruption or model has that name."""


class BadSetting(ResittaError, ValueError):
    """A setting has the wrong type or lies outside its range."""


class BadImages(ResittaError, ValueError):
    """The images are not what the adapter takes: floats in [0, 1], N×C×H×W, on the model's device."""


class NonFiniteImages(BadImages):
    """Some images hold NaN or Inf."""


class BadOutput(ResittaError, ValueError):
    """The model did not return logits of shape N×C."""


class BadLabels(ResittaError, ValueError):
    """Labels that arrive later are not one class of the model for each image."""


class BadState(ResittaError, ValueError):
    """A saved state does not belong to this adapter or is damaged."""


class NotSaved(ResittaError, OSError):
    """A state could not be written to disk, or not durably; the message says which version is there now."""


class Collapsed(ResittaError):
    """A guard with action='raise' has found that the adapter no longer predicts sensibly."""


class NotExportable(ResittaError):
    """The method predicts as no ordinary BatchNorm checkpoint can, or a file would not predict what the model does."""


class StreamFailure(ResittaError, RuntimeError):
    """Some streams of a fleet failed to learn; all others did, and all were predicted.

    `errors` has the error of each failed stream by name, `logits` is what the call would have returned.
    """

    def __init__(self, errors: dict[str, Exception], logits: object) -> None:
        self.errors, self.logits = errors, logits
        name, first = next(iter(errors.items()))
        found = f"{len(errors)} of the streams could not learn; {name!r}: {type(first).__name__}: {first}"
        super().__init__(f"{found}. Their state is as before; the predictions are in .logits, all errors in .errors")


class GroupFailure(ResittaError, RuntimeError):
    """A process of a group that adapts together died, hangs, or is in another state."""


class WorkerLost(ResittaError, RuntimeError):
    """A worker process or a cluster is gone and could not be replaced."""


class NonConformant(ResittaError, AssertionError):
    """A method broke one of the promises that `check_method` tests."""


class BadData(ResittaError, ValueError):
    """A data set, archive or checkpoint on disk is missing, damaged or of another kind."""


class MissingExtra(ResittaError, ImportError):
    """An optional part needs a package that is not installed."""


def near(name: str, known: Iterable[str]) -> str:
    """Say which known name is close to a mistyped one, or list them all.

    Close is what begins with the given letters, or differs by few mistakes: one in three letters, two at most.

    >>> near("tnet", ["tent", "note"])
    "Did you mean 'tent'?"
    >>> near("eata", ["cotta", "note", "resitta"])
    'Known: cotta, note, resitta.'
    """
    names = sorted(filter(None, known))
    typed = name.casefold()
    mistakes = {known: edits(typed, known.casefold()) for known in names}
    close = [known for known in names if mistakes[known] <= min(2, max(len(typed), len(known)) // 3)]
    close = close or [known for known in names if len(typed) >= 3 and known.casefold().startswith(typed)]
    return f"Did you mean '{min(close, key=mistakes.__getitem__)}'?" if close else f"Known: {', '.join(names)}."


def edits(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour between two words.

    >>> edits("tnet", "tent"), edits("eata", "resitta")
    (1, 4)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, start=1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            swapped = i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted
            row.append(min(best, last[j - 2] + 1) if swapped else best)
    return row[-1]


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package, or say which command installs the extra that brings it.

    >>> require("no_such_package", "demo")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    resitta.errors.MissingExtra: no_such_package is not installed; run: pip install ...[demo]...
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        raise MissingExtra(f"{top} is not installed; run: {install_extra(extra)}") from error


def install_extra(extra: str) -> str:
    """Return the command that adds an extra to the package as it is installed here."""
    if (CHECKOUT / "pyproject.toml").is_file():
        return f'pip install -e "{CHECKOUT}[{extra}]"'
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        from urllib.parse import urlparse  # noqa: PLC0415  (only for the message)
        from urllib.request import url2pathname  # noqa: PLC0415

        return f'pip install "{url2pathname(urlparse(url).path)}[{extra}]"'
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f'pip install "resitta[{extra}]{f" @ {url}" if url else ""}"'


def _origin() -> dict[str, dict[str, str]]:
    """Where pip took the package from, if not from an index (PEP 610)."""
    from importlib import metadata  # noqa: PLC0415  (only for the message)

    try:
        text = metadata.distribution("resitta").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        text = None
    found: dict[str, dict[str, str]] = json.loads(text or "{}")
    return found


def install(*packages: str, upgrade: bool = False) -> str:
    """Return the command that installs packages; builds for one torch come from the index of that torch.

    >>> install("timm")
    'pip install timm'
    """
    index = _torch_index()
    bound = [name for name in packages if index and name in BUILT_FOR_TORCH]
    others = [name for name in packages if name not in bound]
    pip = "pip install --upgrade" if upgrade else "pip install"
    first = [f"{pip} {' '.join(bound)} --index-url {index}"] if bound else []
    return " && ".join(first + ([f"{pip} {' '.join(others)}"] if others else []))


def _torch_index() -> str | None:
    """The index that has builds for a torch such as 2.13.0+cpu; torch from the common index has no such mark."""
    from importlib import metadata  # noqa: PLC0415  (only for the message)

    try:
        mark = metadata.version("torch").partition("+")[2]
    except metadata.PackageNotFoundError:
        return None
    return f"https://download.pytorch.org/whl/{mark}" if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", mark) else None
