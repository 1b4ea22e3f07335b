"""Commands about the library itself: demo, methods, check, models."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from resitta.cli.flags import Settings, Words
from resitta.errors import BadSetting
from resitta.settings import parse_pairs

AsJson = Annotated[bool, Parameter(name="--json", negative="")]


def demo(
    subject: Literal["photographs", "digits"] = "photographs",
    *,
    out: Path = Path("resitta-demo"),
    seed: int = 1,
    samples: int | None = None,
    methods: Words = (),
    fast: bool = False,
    retrain: bool = False,
    workers: int | None = None,
) -> None:
    """Compare methods on photographs, or on handwritten digits, under 15 corruptions; needs no data.

    Runs the methods on a corrupted, temporally correlated stream, prints the errors and writes a page with figures. The
    photographs, from CIFAR-10, and the network trained on their kind are part of the package.

    Examples: resitta demo, or resitta demo digits, or resitta demo --methods source resitta my_code.py:my-method

    Parameters
    ----------
    subject
        photographs, with a label prior in time; or digits, for which a small network is trained (once; it is cached).
    out
        The folder for the page, the records and the corrupted images.
    seed
        The seed of the stream's order and of the methods.
    samples
        Images per corruption (default: 500 photographs of 2,000, or 3,000 digits). A few hundred digits are too few.
    methods
        The methods to compare, also your own as path/to/file.py:name (default: source, bn, rotta, resitta and tide; of
        digits, source, bn, tent, rotta and resitta).
    fast
        Use 100 photographs, or 300 digits, per corruption: a quick test, too short to compare methods.
    retrain
        Train the network of the digits even if one is cached.
    workers
        How many methods run at a time, each in a process of its own (default: one per core).
    """
    from resitta.cli.terminal import bars, console, say  # noqa: PLC0415
    from resitta.demo.run import SUBJECTS, run_demo  # noqa: PLC0415  (needs the extra `demo`)
    from resitta.report.formats import as_rich  # noqa: PLC0415
    from resitta.report.groups import grouped  # noqa: PLC0415
    from resitta.report.significance import verdicts  # noqa: PLC0415
    from resitta.report.table import error_table  # noqa: PLC0415

    shown = SUBJECTS[subject]
    if samples is None:
        samples = shown.fast_samples if fast else shown.samples
    options: dict[str, Any] = {"methods": methods, "retrain": retrain, "workers": workers}
    with bars() as bar:
        page, runs = run_demo(out, subject, seed=seed, samples=samples, **options, bar=bar)
    console().print(as_rich(error_table(runs)))
    for sentence in verdicts(grouped(runs)):
        say(sentence)
    if samples < shown.samples:
        say(shown.few.format(samples=samples, usual=shown.samples))
    say(f"\nThe page with all figures: {page.resolve()}")


def methods(name: str | None = None, *, as_json: AsJson = False) -> None:
    """List the methods, or show the settings, presets and paper of one.

    Examples: resitta methods, or resitta methods resitta, or resitta methods path/to/file.py:name --json

    Parameters
    ----------
    name
        A registered name such as tent, or your own method as path/to/file.py:name.
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
        A registered name such as tent, or your own method as path/to/file.py:name.
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
        cpu, cuda, ...
    """
    from resitta.cli.terminal import console  # noqa: PLC0415
    from resitta.conformance import check_method  # noqa: PLC0415
    from resitta.method import create  # noqa: PLC0415
    from resitta.models.user_code import load_method  # noqa: PLC0415

    chosen = create(load_method(method), **parse_pairs(settings, "--set"))
    passed = check_method(chosen, network=network, device=device, **_own(model, checkpoint, data, size))
    for name in passed:
        console().print(f"[green]passed[/] {name.replace('_', ' ')}", highlight=False)
    console().print(f"{len(passed)} passed, 0 failed", highlight=False)


def _own(model: str | None, checkpoint: Path | None, data: Path | None, size: int | None) -> dict[str, Any]:
    """The user's model and images, in place of those of the suite."""
    from resitta.data.corrupted import evenly  # noqa: PLC0415
    from resitta.data.datasets import open_images  # noqa: PLC0415
    from resitta.models import MODELS, create  # noqa: PLC0415

    if model is None:
        if checkpoint or data or size:
            raise BadSetting("--checkpoint, --data and --size require --model")
        return {}
    side = size or (MODELS[model].image_size if model in MODELS else 32)
    options: dict[str, Any] = {"model": create(model, checkpoint), "shape": (3, side, side)}
    if data is not None:
        images = evenly(open_images(data, **({} if size is None else {"size": size})), 256)
        options["images"] = images.read(range(len(images))).float().div_(255)
    return options


def models(*, as_json: AsJson = False) -> None:
    """List the named source networks; timm:NAME, torchvision:NAME and file.py:function can be used as well.

    Parameters
    ----------
    as_json
        Print JSON, for other programs.
    """
    from resitta.cli.listing import print_models  # noqa: PLC0415

    print_models(as_json=as_json)
