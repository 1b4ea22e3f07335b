"""The command about source data: prepare."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from resitta.cli.flags import ModelOptions, Settings
from resitta.settings import parse_pairs


def prepare(
    model: str,
    data: Path,
    *,
    method: Annotated[str, Parameter(name="--for")],
    out: Path | None = None,
    checkpoint: Path | None = None,
    model_options: ModelOptions = (),
    settings: Settings = (),
    images: int = 2000,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "cpu",
) -> None:
    """Compute what a method needs to know of its source data, once, and write it to a file.

    Afterwards resitta.adapt(model, "eata", source="eata.safetensors") needs no images.

    Example: resitta prepare wrn28x10 cifar-10-batches-py --for eata --checkpoint Standard.pt

    Parameters
    ----------
    model
        As for bench: a name of `resitta models`, timm:NAME, torchvision:NAME or path/to/file.py:function.
    data
        Clean images: CIFAR batches, a folder or zip of class/image files.
    method
        A method that takes source data, such as eata.
    out
        The file to write (default: METHOD.safetensors).
    checkpoint
        Weights for the model.
    model_options
        Options of the function that makes the model: pretrained=true num_classes=10 weights=DEFAULT.
    settings
        Settings of the method: lr=1e-2.
    images
        How many images to use, evenly chosen among the classes; 5000 at most.
    batch_size
        Images per forward pass: as many as the adapter will be called with.
    size
        Resize and crop images of a folder or zip to this side.
    device
        Where to run.
    """
    from resitta import prepare as compute  # noqa: PLC0415  (torch, which --help does not need)
    from resitta.cli.terminal import bars, say  # noqa: PLC0415
    from resitta.data.datasets import open_images  # noqa: PLC0415
    from resitta.data.source_batches import SourceBatches  # noqa: PLC0415
    from resitta.method import create  # noqa: PLC0415
    from resitta.models import create as create_model  # noqa: PLC0415
    from resitta.models.user_code import load_method  # noqa: PLC0415

    chosen = create(load_method(method), **parse_pairs(settings, "--set"))
    network = create_model(model, checkpoint, **parse_pairs(model_options, "--model-set")).to(device)
    found = open_images(data, **({} if size is None else {"size": size}))
    path = out or Path(f"{chosen.name}.safetensors")
    with bars() as bar:
        batches = SourceBatches(found, images, size=batch_size)
        made = compute(network, batches, chosen, path=path, progress=bar(f"source data of {chosen.name}"))
    say(f"{made.images} images read; written: {path}")
