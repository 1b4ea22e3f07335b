"""The command that serves a model."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from resitta.cli.flags import ModelOptions, Settings, Words
from resitta.cli.samples import digits, photographs
from resitta.errors import BadSetting, require
from resitta.serve.settings import Limits, Resize

if TYPE_CHECKING:
    from torch import nn

DEMO, DEMO_SIZE = "demo", 32
"""The network that `resitta demo digits` trains, and the side of its images."""
MOST_STREAMS = 1000
"""How many streams of a fleet stay in memory."""
OF_THE_ADAPTER = (
    *("model", "checkpoint", "model_options", "untrained"),
    *("method", "preset", "settings", "seed", "guard", "device", "shadow", "fallback"),
)
"""The options that make the adapter; the others are the service's."""


def serve(
    model: str,
    *,
    checkpoint: Path | None = None,
    model_options: ModelOptions = (),
    untrained: Annotated[bool, Parameter(negative=())] = False,
    method: str = "resitta",
    preset: str | None = None,
    settings: Settings = (),
    state: Path | None = None,
    size: int | None = None,
    resize: Resize = "crop",
    labels: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: Words = (),
    token_file: Path | None = None,
    model_name: str = "resitta",
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    guard: bool = True,
    shadow: float | None = None,
    fallback: Annotated[bool, Parameter(negative=())] = False,
    fleet: Annotated[bool, Parameter(negative=())] = False,
    max_streams: int | None = None,
    engine: Literal["local", "ray"] = "local",
    readers: int = 1,
    address: str | None = None,
    limits: Annotated[Limits, Parameter(name="*")] = Limits(),  # noqa: B008  (frozen)
) -> None:
    """Serve predictions over HTTP and adapt to the images received.

    POST images to /predict; open / in a browser to monitor the adaptation. /pause, /resume, /reset, /snapshot,
    /rollback and /feedback require the token in $RESITTA_TOKEN or --token-file; without one, a token is generated and
    printed.

    Examples: resitta serve demo, or
    resitta serve wrn28x10 --checkpoint Standard.pt --state state/ --preset cifar10, or for many cameras
    resitta serve wrn28x10 --checkpoint Standard.pt --state streams/ --fleet

    Parameters
    ----------
    model
        demo, a name of `resitta models`, timm:NAME, torchvision:NAME, package.module:function or path/file.py:function.
    checkpoint
        Weights for the model: safetensors, or a torch file without code.
    model_options
        Options of the function that makes the model: pretrained=true num_classes=10 weights=DEFAULT.
    untrained
        Serve a network with random weights, which is refused otherwise.
    method
        The method: one of `resitta methods`, or your own as path/to/file.py:name. With methods other than tide,
        resitta, rotta, tribe and source, predictions wait for updates.
    preset
        The method's named settings: cifar10, cifar100, imagenet.
    settings
        Settings of the method: lr=5e-4 eta=0.05. For resitta, the default of anchor is 0.1 here: without it the
        accuracy degrades over months.
    state
        The folder for snapshots; a restart continues from the newest. Without it, the state is lost at the end.
    size
        The side of the model's input images; known for the models of `resitta models`.
    resize
        crop: scale the central square, 7/8 of the shorter side, to the size; stretch: scale the whole image.
    labels
        A text file with one class name per line.
    host
        The address to listen on; 0.0.0.0 listens on all interfaces.
    port
        The port; 0 selects a free one.
    allow_host
        Host names to accept in requests, such as that of a proxy. On 127.0.0.1, localhost and these are accepted; on
        other addresses all are, unless some are given.
    token_file
        A file with the token for the controls.
    model_name
        The model's name in the Open Inference Protocol: /v2/models/NAME/infer.
    device
        cpu, cuda, cuda:1, ...
    threads
        Threads for predicting, and as many for learning (default: half of the cores each).
    seed
        The seed of the method's random generator.
    guard
        Keep out-of-distribution images out of the memory, and undo updates that break the model.
    shadow
        The share of images that the source model predicts, too, such as 0.05, for a comparison in /stats; POST
        /feedback takes labels of images that were predicted before.
    fallback
        Answer with the source model while labels show that it is significantly better. Needs --shadow.
    fleet
        Let each stream adapt by itself: one camera's noise, failure or reset does not touch the others. A request names
        its stream by the header X-Stream or by ?stream=; without a name it belongs to a stream of its client. Names
        belong to the client, a token holder's to all who send the token. GET /streams lists the streams; /pause,
        /resume, /reset, /snapshot and /bank take ?stream=. --state is the folder of the streams.
    max_streams
        With --fleet, how many streams stay in memory (default: 1000); those used least recently go to the folder and
        come back exactly.
    engine
        local: one process; ray: one process that learns and several that predict, on a Ray cluster.
    readers
        The number of processes that predict on Ray.
    address
        A running Ray cluster, such as auto or HOST:6379; without it, one is started on this machine.
    """
    given = dict(locals())
    for package in ("fastapi", "uvicorn", "prometheus_client", "PIL", "safetensors"):
        require(package, "serve")
    from resitta.serve import launch  # noqa: PLC0415
    from resitta.settings import BY_METHOD, parse_pairs  # noqa: PLC0415

    as_fleet, streams = given.pop("fleet"), given.pop("max_streams")
    refuse_with_fleet(shadow, engine) if as_fleet else refuse_without_fleet(streams)
    given["model_options"] = options = parse_pairs(model_options, "--model-set")
    given["settings"] = parse_pairs(settings, "--set", BY_METHOD)
    if model == DEMO:
        given |= {"model": demo_network, "size": DEMO_SIZE if size is None else size}
    else:
        launch.check_model(model, checkpoint, options, untrained=untrained, others=[DEMO])
    given |= {"size": launch.image_side(model, given["size"]), "readers": readers if engine == "ray" else None}
    del given["engine"]
    of_adapter = {name: given.pop(name) for name in OF_THE_ADAPTER}
    if as_fleet:
        given["make_fleet"] = partial(
            launch.make_fleet, max_streams=MOST_STREAMS if streams is None else streams, **of_adapter
        )
    make = partial(launch.make_adapter, **of_adapter)
    launch.serve(make, model=model, samples=digits if model == DEMO else photographs, **given)


def refuse_with_fleet(shadow: float | None, engine: str) -> None:
    """Refuse options that --fleet does not go with."""
    if shadow is not None:
        raise BadSetting("the streams of a fleet are not compared with the source; leave out --shadow, or --fleet")
    if engine != "local":
        raise BadSetting(f"a fleet learns and predicts in one process; leave out --engine {engine}, or --fleet")


def refuse_without_fleet(max_streams: int | None) -> None:
    """Refuse an option that needs --fleet."""
    if max_streams is not None:
        raise BadSetting(f"--max-streams {max_streams} is an option of --fleet; give --fleet, too")


def demo_network() -> "nn.Module":
    """Return the small network of `resitta demo digits`, trained now unless it is in the cache."""
    from resitta.cli.terminal import bars  # noqa: PLC0415
    from resitta.demo.digits import load_digits, source_network  # noqa: PLC0415  (needs the extra `demo`)

    with bars() as bar:
        return source_network(load_digits(), bar("training"), retrain=False)
