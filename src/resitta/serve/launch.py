"""The Python API behind `resitta serve`: check a model, make its adapter, serve it."""

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.bench.api import by_method
from resitta.bench.runner import usable_device
from resitta.errors import BadData, BadSetting, UnknownName, near, require
from resitta.fleets import Fleet, fleet
from resitta.models import MODELS, find, why_untrained
from resitta.models import create as create_model
from resitta.models.user_code import load_method
from resitta.serve.app import create_app
from resitta.serve.fleet_service import FleetService
from resitta.serve.routes_sample import Load, generated
from resitta.serve.security import allowed_names, find_token
from resitta.serve.server import listen, run
from resitta.serve.service import Service
from resitta.serve.settings import Limits, Resize

T = TypeVar("T")
LASTING: dict[str, dict[str, Any]] = {"resitta": {"anchor": 0.1}}
"""Defaults of methods that differ from those of a benchmark, because a service's stream has no end."""


def check_model(
    model: str,
    checkpoint: Path | None,
    options: Mapping[str, Any],
    *,
    untrained: bool = False,
    others: Sequence[str] = (),
) -> None:
    """Refuse a model that does not exist or has no trained weights; `others` are further names for the message."""
    if ":" not in model and model not in MODELS:
        raise UnknownName(f"there is no model '{model}'. {near(model, [*others, *MODELS])}")
    find(model)
    if not untrained:
        _refuse_untrained(model, checkpoint, options)


def image_side(model: str, size: int | None) -> int:
    """Return the side of the images that a model takes: `size` if given, else as registered."""
    if size is not None and size < 1:
        raise BadSetting(f"--size must be a positive number of pixels, found {size}")
    known = MODELS[model].image_size if model in MODELS else None
    if size is None and known is None:
        raise BadSetting(f"the image size of {model} is unknown; give --size, such as --size 224")
    return size or known or 0


def make_adapter(model: str | Callable[[], nn.Module], checkpoint: Path | None = None, **options: Any) -> Adapter:
    """Make a model, from its name or by calling it, and the adapter around it; see `_make` for the options."""
    return _make(adapt, model, checkpoint, **options)


def make_fleet(folder: Path, *, max_streams: int, **options: Any) -> Fleet:
    """Make a model and the fleet around it, with the options of `make_adapter`; the service saves it."""
    return _make(partial(fleet, folder=folder, max_streams=max_streams, autosave=None), **options)


def _make(
    wrap: Callable[..., T],
    model: str | Callable[[], nn.Module],
    checkpoint: Path | None = None,
    *,
    model_options: Mapping[str, Any] | None = None,
    untrained: bool = False,
    method: str = "resitta",
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    guard: bool = True,
    device: str = "cpu",
    shadow: float | None = None,
    fallback: bool = False,
) -> T:
    """Make a model and wrap it."""
    of_model = dict(model_options or {})
    network = create_model(model, checkpoint, **of_model) if isinstance(model, str) else model()
    if isinstance(model, str) and not untrained:
        _refuse_untrained(model, checkpoint, of_model, network)
    name = load_method(method)
    values = {**LASTING.get(name, {}), **by_method(settings or {}, [name])[name]}
    options: dict[str, Any] = {"seed": seed, "guard": guard, "shadow": shadow, "fallback": fallback}
    return wrap(network.to(usable_device(device)), name, preset=preset, **options, **values)


def serve(
    make: Callable[[], Adapter],
    *,
    size: int,
    resize: Resize = "crop",
    labels: Path | None = None,
    state: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: Sequence[str] = (),
    token_file: Path | None = None,
    model_name: str = "resitta",
    model: str = "",
    samples: Load = generated,
    threads: int | None = None,
    limits: Limits | None = None,
    readers: int | None = None,
    address: str | None = None,
    make_fleet: Callable[[Path], Fleet] | None = None,
) -> None:
    """Serve the adapter that `make` returns until the process is stopped; with a number of readers, on Ray.

    With `make_fleet`, serve the fleet that it returns for a folder, each stream of which adapts by itself. `model` is
    its name for the live page, `samples` loads the images that the page may send. `resitta serve --help` explains the
    other arguments.
    """
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 2) // 2))
    given = find_token(token_file)
    token = given or secrets.token_urlsafe(24)
    with ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resitta-")))
        options: dict[str, Any] = {"size": size, "limits": limits, "names": _names(labels)}
        on = stack.enter_context(listen(host, port))  # before a Ray cluster is started, which would have to be stopped
        if make_fleet is not None:
            service: Service = FleetService(make_fleet(folder), **options)
        elif readers is None:
            service = Service(make(), state=folder, **options)
        else:
            from resitta.distributed.ray_serve import ray_service  # noqa: PLC0415  (needs the extra `dist`)

            service = ray_service(make, readers=readers, address=address, state=folder, **options)
        _announce(service, on.getsockname(), token if given is None else None, state)
        names = allowed_names(on.getsockname()[0], host, allow_host)
        shown: dict[str, Any] = {"model_name": model_name, "model": model, "samples": samples}
        run(create_app(service, token=token, resize=resize, names=names, **shown), on)


def _refuse_untrained(
    model: str, checkpoint: Path | None, options: Mapping[str, Any], network: nn.Module | None = None
) -> None:
    if reason := why_untrained(model, checkpoint, options, network):
        raise BadSetting(f"{reason}, or serve it as it is with --untrained")


def _names(labels: Path | None) -> list[str]:
    if labels is None:
        return []
    try:
        return [line.strip() for line in labels.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"the names of the classes cannot be read from {labels} ({error})") from error


def _announce(service: Service, address: tuple[str, int], token: str | None, state: Path | None) -> None:
    """Print the address, with the token if it is new, and what users may not expect."""
    host, port = address[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say = require("rich.console", "serve").Console().print
    report = service.writer.report()
    say(f"{service.adapter.method.name} serves at {place}{f'#token={token}' if token else ''}", soft_wrap=True)
    say(f"state: {state or 'not kept (give --state FOLDER)'}, {service.summary()}", soft_wrap=True)
    if not report.concurrent:
        say(f"{service.adapter.method.name} predicts and learns in one step: predictions wait for updates")
    if not host.startswith(("127.", "::1")):
        say(f"any client that reaches {host} can predict and so change the model: use a proxy to restrict access")
