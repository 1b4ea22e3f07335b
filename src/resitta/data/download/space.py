"""Is there room on the disk?"""

import shutil
from pathlib import Path

from resitta.errors import BadData


def check_space(folder: Path, need: int, what: str) -> None:
    """Refuse to begin what the disk cannot hold.

    >>> check_space(Path("."), 10**18, "big.tar")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    resitta.errors.BadData: big.tar needs 1000000000.0 GB in ., but only ... GB are free; ...
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise BadData(
            f"{what} needs {need / 1e9:.1f} GB in {folder}, but only {free / 1e9:.1f} GB are free; "
            "make room or choose another folder."
        )
