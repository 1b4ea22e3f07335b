"""Commands that make or get data: corrupt, data fetch."""

from pathlib import Path
from typing import Any, Literal

from resitta.cli.flags import Words
from resitta.names import CORRUPTIONS


def corrupt(
    data: Path,
    out: Path,
    *,
    layout: Literal["arrays", "folders"] = "arrays",
    corruptions: Words = CORRUPTIONS,
    size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Corrupt your images at severities 1 to 5 and write them in the layout of the public sets.

    Parameters
    ----------
    data
        CIFAR batches, or a folder or zip of class/image files.
    out
        The folder to write to; existing files are kept.
    layout
        arrays: one NAME.npy per corruption and labels.npy, as CIFAR-C; folders: NAME/SEVERITY/CLASS/IMAGE.JPEG, as
        ImageNet-C.
    corruptions
        The corruptions (default: the paper's 15); also available: speckle_noise, gaussian_blur, spatter, saturate.
    size
        Resize and crop images of a folder or zip to this side.
    seed
        The random seed; the corruption of an image does not depend on the other images.
    device
        cpu, cuda, ...
    """
    from resitta.cli.terminal import Bar, bars, say  # noqa: PLC0415
    from resitta.data import write_corrupted  # noqa: PLC0415
    from resitta.data.corruptions import frost_texture_source, full_name  # noqa: PLC0415

    names = [full_name(name) for name in corruptions]
    if "frost" in names:
        say(f"frost uses the {frost_texture_source()} textures")
    with bars() as bar:
        tracks: dict[str, Bar] = {}

        def progress(what: str, done: int, total: int) -> None:
            tracks[what] = tracks.get(what) or bar(what)
            tracks[what](done, total)

        how: dict[str, Any] = {"layout": layout, "corruptions": names, "size": size, "seed": seed, "device": device}
        write_corrupted(data, out, **how, progress=progress)
    say(f"written: {out}")


def fetch(name: Literal["cifar10c", "cifar100c", "imagenetc"], *, root: Path = Path("data")) -> None:
    """Download a public corrupted set, verify and unpack it. An interrupted download is resumed.

    Parameters
    ----------
    name
        cifar10c, cifar100c (one archive each), imagenetc (four large archives).
    root
        The folder to unpack into.
    """
    from resitta import data  # noqa: PLC0415
    from resitta.cli.terminal import bars, say  # noqa: PLC0415

    with bars() as bar:
        track = bar(name)
        folder = data.fetch(name, root, progress=lambda done, total: track(done, total or 0))
    say(f"unpacked: {folder}")
