"""What the serve command does: make the adapter, take the port, print where to look, run."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.bench.spec import usable_device
from resitta.cli.benching import parse_pairs, parse_settings
from resitta.errors import BadData, BadSetting, UnknownName, near
from resitta.models import MODELS, find, why_untrained
from resitta.models import create as create_model
from resitta.serve.allowed_hosts import names_of
from resitta.serve.app import create_app
from resitta.serve.security import find_token, new_token
from resitta.serve.server import listen, run
from resitta.serve.service import Service
from resitta.serve.settings import Limits, Resize
from resitta.terminal import bars, console
from resitta.user_code import load_method

DEMO = "demo"
"""The network that `resitta demo` trains."""
LASTING: dict[str, dict[str, Any]] = {"resitta": {"anchor": 0.1}}
"""Settings of methods that a service has and a benchmark has not: its stream has no end."""


def make_adapter(
    model: str,
    checkpoint: Path | None,
    *,
    model_options: Mapping[str, Any] | None = None,
    untrained: bool = False,
    method: str,
    preset: str | None,
    settings: Sequence[str],
    seed: int,
    guard: bool,
    device: str,
) -> Adapter:
    """Build the model and the adapter around it."""
    chosen = dict(model_options or {})
    network = _demo_network() if model == DEMO else create_model(model, checkpoint, **chosen)
    if not untrained:
        _refuse_untrained(model, checkpoint, chosen, network)
    name = load_method(method)
    options = {**LASTING.get(name, {}), **parse_settings(settings, [name])[name]}
    return adapt(network.to(usable_device(device)), name, preset=preset, seed=seed, guard=guard, **options)


def check_served(
    model: str, checkpoint: Path | None, model_options: Sequence[str], *, untrained: bool
) -> dict[str, Any]:
    """Refuse a model that does not exist, or has no trained weights, before anything else; return its options."""
    options = parse_pairs(model_options, "--model-set")
    if model != DEMO:
        if ":" not in model and model not in MODELS:
            raise UnknownName(f"there is no model '{model}'. {near(model, [DEMO, *MODELS])}")
        find(model)
        if not untrained:
            _refuse_untrained(model, checkpoint, options)
    return options


def _refuse_untrained(
    model: str, checkpoint: Path | None, options: Mapping[str, Any], network: nn.Module | None = None
) -> None:
    reason = None if model == DEMO else why_untrained(model, checkpoint, options, network)
    if reason:
        raise BadSetting(f"{reason}, or serve it as it is with --untrained")


def run_service(
    make: Callable[[], Adapter],
    *,
    size: int,
    resize: Resize,
    labels: Path | None,
    state: Path | None,
    host: str,
    port: int,
    allow_host: Sequence[str],
    token_file: Path | None,
    threads: int | None,
    limits: Limits,
    readers: int | None,
    address: str | None,
) -> None:
    """Serve until the process is told to stop; with a number of readers, on Ray."""
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 2) // 2))
    given = find_token(token_file)
    token = given or new_token()
    with ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resitta-")))
        options: dict[str, Any] = {"size": size, "state": folder, "limits": limits, "names": _names(labels)}
        on = stack.enter_context(listen(host, port))  # before a cluster is started that somebody would have to stop
        engine = Service(make(), **options) if readers is None else _on_ray(make, readers, address, options)
        _announce(engine, on.getsockname(), token if given is None else None, state)
        names = names_of(on.getsockname()[0], host, allow_host)
        run(create_app(engine, token=token, resize=resize, names=names), on)


def _on_ray(make: Callable[[], Adapter], readers: int, address: str | None, options: dict[str, Any]) -> Service:
    from resitta.distributed.ray_serve import ray_service  # noqa: PLC0415  (needs the extra `dist`)

    return ray_service(make, readers=readers, address=address, **options)


def image_side(model: str, size: int | None) -> int:
    """The side of the images that a model takes: as asked for, or as known."""
    if size is not None and size < 1:
        raise BadSetting(f"--size must be a positive number of pixels, found {size}")
    known = 32 if model == DEMO else MODELS[model].image_size if model in MODELS else None
    if size is None and known is None:
        raise BadSetting(f"the image size of {model} is not known here; give --size, such as --size 224")
    return size or known or 0


def _demo_network() -> nn.Module:
    """The small network of `resitta demo`, trained now unless it is in the cache."""
    from resitta.demo.digits import load_digits  # noqa: PLC0415  (needs the extra `demo`)
    from resitta.demo.run import source_network  # noqa: PLC0415

    with bars() as bar:
        return source_network(load_digits(), bar("training"), retrain=False)


def _names(labels: Path | None) -> list[str]:
    if labels is None:
        return []
    try:
        return [line.strip() for line in labels.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"the names of the classes cannot be read from {labels} ({error})") from error


def _announce(engine: Service, address: tuple[str, int], token: str | None, state: Path | None) -> None:
    """Say where to look, with the token where nobody else knows it; and what differs from what one may expect."""
    host, port = address[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say = console().print
    report = engine.writer.report()
    version, samples = report.version, report.stats.samples
    say(f"{engine.adapter.method.name} serves at {place}{f'#token={token}' if token else ''}", soft_wrap=True)
    say(f"state: {state or 'not kept (give --state FOLDER)'}, version {version}, {samples} samples", soft_wrap=True)
    if not report.concurrent:
        say(f"{engine.adapter.method.name} predicts and learns in one step: predictions wait for updates")
    if not host.startswith(("127.", "::1")):
        say(f"anyone who reaches {host} can ask for predictions, and so teach the model: put a proxy in front")
