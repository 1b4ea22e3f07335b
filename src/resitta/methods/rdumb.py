"""RDumb: ETA that begins again from the source every thousand batches (Press et al., NeurIPS 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from resitta.method import register
from resitta.methods.eta import ETA
from resitta.settings import setting


@register("rdumb")
@dataclass(frozen=True, kw_only=True)
class RDumb(ETA):
    """ETA that forgets everything every so many batches, however many images a batch has."""

    title: ClassVar[str] = "RDumb"
    paper: ClassVar[str] = (
        "Press, Schneider, Kümmerer, Bethge. RDumb: A simple approach that questions our progress in "
        "continual test-time adaptation. NeurIPS 2023."
    )

    reset_every: int | None = setting(1000, at_least=1, doc="start again from the source after this many batches")
