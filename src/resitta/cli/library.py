"""Commands about the library itself: demo, methods, check, models."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from resitta.cli.flags import Settings, Words
from resitta.errors import BadSetting
from resitta.settings import parse_pairs

AsJson = Annotated[bool, Parameter(name="--json", negative="")]


def demo(
    *,
    out: Path = Path("resitta-demo"),
    seed: int = 1,
    samples: int | None = None,
    methods: Words = ("source", "bn", "tent", "rotta", "resitta"),
    fast: bool = False,
    retrain: bool = False,
) -> None:
    """Compare methods on handwritten digits under 15 corruptions; needs no data.

    Trains a small BatchNorm network on clean digits (once; it is cached), runs the methods on a corrupted, temporally
    correlated stream, prints the errors and writes a page with figures.

    Parameters
    ----------
    out
        The folder for the page and the records.
    seed
        Fixes the stream's order and all randomness of the methods.
    samples
        Images per corruption (default 3000). A few hundred are too few for the statistics to adapt.
    methods
        Which methods; path/to/file.py:name is one of your own.
    fast
        Use 300 images per corruption: a quick test, no comparison of methods.
    retrain
        Train the source network even if one is cached.
    """
    from resitta.cli.terminal import bars, console, say  # noqa: PLC0415
    from resitta.demo import run as painted_digits  # noqa: PLC0415  (needs the extra `demo`)
    from resitta.report.formats import as_rich  # noqa: PLC0415
    from resitta.report.groups import grouped  # noqa: PLC0415
    from resitta.report.significance import verdicts  # noqa: PLC0415
    from resitta.report.table import error_table  # noqa: PLC0415

    if samples is None:
        samples = painted_digits.FAST_SAMPLES if fast else painted_digits.SAMPLES
    with bars() as bar:
        page, runs = painted_digits.run_demo(out, seed=seed, samples=samples, methods=methods, retrain=retrain, bar=bar)
    console().print(as_rich(error_table(runs)))
    for sentence in verdicts(grouped(runs)):
        say(sentence)
    if samples < painted_digits.SAMPLES:
        say(painted_digits.FEW.format(samples=samples, usual=painted_digits.SAMPLES))
    say(f"\nThe page with all figures: {page.resolve()}")


def methods(name: str | None = None, *, as_json: AsJson = False) -> None:
    """List the methods, or show the settings, presets and paper of one.

    Examples: resitta methods, or resitta methods resitta, or resitta methods path/to/file.py:name --json

    Parameters
    ----------
    name
        A registered name such as tent, or a file of your own that registers one: path/to/file.py:name.
    as_json
        Print JSON, for other programs.
    """
    from resitta.cli.listing import print_methods  # noqa: PLC0415  (torch, which --help does not need)

    print_methods(name, as_json=as_json)


def check(
    method: str,
    *,
    settings: Settings = (),
    network: Literal["batch_norm", "layer_norm", "group_norm"] = "batch_norm",
    model: str | None = None,
    checkpoint: Path | None = None,
    data: Path | None = None,
    size: int | None = None,
    device: str = "cpu",
) -> None:
    """Run the conformance suite on a method.

    Example: resitta check my_code.py:my-method --set lr=1e-2 --model wrn16x1 --checkpoint wrn16x1.safetensors

    Parameters
    ----------
    method
        A registered name such as tent, or a file of your own that registers one: path/to/file.py:name.
    settings
        Settings of the method: lr=1e-2 threshold=0.9.
    network
        What the small network to check with normalises with. It is certain of some images and uncertain of others.
    model
        A model to check with instead, as for bench: wrn16x1, timm:NAME, torchvision:NAME or path/to/file.py:function.
    checkpoint
        Weights for the model.
    data
        Images for the model, a folder or zip of class/image files or CIFAR batches; by default random ones.
    size
        The side of the images; by default that of the named model, otherwise 32.
    device
        Where to run.
    """
    from resitta.cli.terminal import console  # noqa: PLC0415
    from resitta.conformance import check_method  # noqa: PLC0415
    from resitta.method import create  # noqa: PLC0415
    from resitta.models.user_code import load_method  # noqa: PLC0415

    chosen = create(load_method(method), **parse_pairs(settings, "--set"))
    passed = check_method(chosen, network=network, device=device, **_model_and_images(model, checkpoint, data, size))
    for name in passed:
        console().print(f"[green]passed[/] {name.replace('_', ' ')}", highlight=False)
    console().print(f"{len(passed)} passed, 0 failed", highlight=False)


def _model_and_images(
    model: str | None, checkpoint: Path | None, data: Path | None, size: int | None
) -> dict[str, Any]:
    """What the suite is to use in place of its own model and images."""
    from resitta.data.corrupted import evenly  # noqa: PLC0415
    from resitta.data.datasets import open_images  # noqa: PLC0415
    from resitta.models import MODELS, create  # noqa: PLC0415

    if model is None:
        if checkpoint or data or size:
            raise BadSetting("--checkpoint, --data and --size belong to a model of yours; name it with --model")
        return {}
    side = size or (MODELS[model].image_size if model in MODELS else 32)
    options: dict[str, Any] = {"model": create(model, checkpoint), "shape": (3, side, side)}
    if data is not None:
        images = evenly(open_images(data, **({} if size is None else {"size": size})), 256)
        options["images"] = images.read(range(len(images))).float().div_(255)
    return options


def models(*, as_json: AsJson = False) -> None:
    """List the source networks that can be named; any timm:NAME, torchvision:NAME or file.py:function works too.

    Parameters
    ----------
    as_json
        Print JSON, for other programs.
    """
    from resitta.cli.listing import print_models  # noqa: PLC0415

    print_models(as_json=as_json)
