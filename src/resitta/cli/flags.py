"""Flags that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True)]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=True)]
ModelOptions = Annotated[tuple[str, ...], Parameter(name="--model-set", consume_multiple=True)]
Dataset = Literal["cifar10", "cifar100", "imagenet"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """How the runs of a bench are executed.

    Parameters
    ----------
    listing
        A text file with the images of ImageNet-C to use, wnid/name.JPEG on each line: the paper's table3 is on the
        5,000 of RobustBench's imagenet_test_image_ids.txt.
    rerun
        Repeat finished runs and replace their records.
    device
        cpu, cuda, cuda:1, ...
    threads
        Threads of each run on the CPU (default: torch's own number; one with processes and ray).
    engine
        local: one run at a time; processes: several at a time; ray: on a Ray cluster.
    workers
        The number of parallel runs on this machine (default: one per core).
    address
        A running Ray cluster, such as auto or HOST:6379; without it, one is started on this machine.
    """

    listing: Path | None = None
    rerun: bool = False
    device: str = "cpu"
    threads: int | None = None
    engine: Literal["local", "processes", "ray"] = "local"
    workers: int | None = None
    address: str | None = None
