"""Commands that make or get data: corrupt, data fetch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from resitta.names import CORRUPTIONS

Many = Parameter(consume_multiple=True)


def corrupt(
    data: Path,
    out: Path,
    *,
    layout: Literal["arrays", "folders"] = "arrays",
    corruptions: Annotated[tuple[str, ...], Many] = CORRUPTIONS,
    size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Corrupt images of yours at severities 1 to 5 and write them as the public sets are laid out.

    Parameters
    ----------
    data
        CIFAR batches, or a folder or zip of class/image files.
    out
        The folder to write to; what is already there is kept.
    layout
        arrays: one NAME.npy per corruption and labels.npy, as CIFAR-C; folders: NAME/SEVERITY/CLASS/IMAGE.JPEG, as
        ImageNet-C.
    corruptions
        Which ones (default: the paper's 15); speckle_noise, gaussian_blur, spatter and saturate exist too.
    size
        Resize and crop images of a folder or zip to this side.
    seed
        The same image with the same seed is corrupted in the same way, alone or among others.
    device
        cpu, cuda, ...
    """
    from resitta.cli.making import run_corrupt  # noqa: PLC0415

    run_corrupt(data, out, layout=layout, corruptions=corruptions, size=size, seed=seed, device=device)


def fetch(name: Literal["cifar10c", "cifar100c", "imagenetc"], *, root: Path = Path("data")) -> None:
    """Download a public corrupted set, verify it, unpack it. An interrupted download goes on where it stopped.

    Parameters
    ----------
    name
        cifar10c, cifar100c (one archive each), imagenetc (four large archives).
    root
        The folder to unpack into.
    """
    from resitta.cli.making import run_fetch  # noqa: PLC0415

    run_fetch(name, root)
