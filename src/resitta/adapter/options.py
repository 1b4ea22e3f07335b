"""The options of `adapt`, which documents them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from resitta.errors import BadSetting
from resitta.inputs import NonFinite
from resitta.monitor.guard import Guard
from resitta.training.network import Normalized, Output, Precision

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Ranks: TypeAlias = "ProcessGroup | Literal['world'] | None"
"""The processes that adapt together: all of torch.distributed, some of them, or this one alone."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """One frozen record, checked once.

    >>> Options(seed=3).precision
    'exact'
    """

    seed: int = 0
    output: Output = None
    normalized: Normalized | None = None
    non_finite: NonFinite = "raise"
    guard: Guard | bool = False
    precision: Precision = "exact"
    cuda_graphs: bool = True
    background: bool = False
    group: Ranks = None
    classes: int | None = None
    shadow: float | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        if self.non_finite not in ("raise", "skip"):
            raise BadSetting(f"non_finite must be 'raise' or 'skip', found {self.non_finite!r}")
        if self.precision not in ("exact", "bf16"):
            raise BadSetting(f"precision must be 'exact' or 'bf16', found {self.precision!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**64:
            raise BadSetting(f"seed must be a whole number from 0 to 2**64-1, found {self.seed!r}")
        for name in ("cuda_graphs", "background", "fallback"):
            if not isinstance(getattr(self, name), bool):
                raise BadSetting(f"{name} must be True or False, found {getattr(self, name)!r}")
        if self.classes is not None and (type(self.classes) is not int or self.classes < 2):
            raise BadSetting(f"classes must be a whole number from 2 on, found {self.classes!r}; or leave it out")
        if self.shadow is not None:
            self._check_share()
        elif self.fallback:
            raise BadSetting("fallback=True needs a comparison with the source; pass shadow= too, such as shadow=0.05")
        if self.group is not None:
            self._check_group()

    def _check_share(self) -> None:
        number = isinstance(self.shadow, int | float) and not isinstance(self.shadow, bool)
        if not number or not 0 < float(self.shadow or 0) <= 1:
            raise BadSetting(f"shadow must be a share of the images, above 0 and at most 1, found {self.shadow!r}")

    def _check_group(self) -> None:
        if self.guard:
            reason = "a guard judges one stream, and would take back updates that the other ranks keep"
            raise BadSetting(f"a group cannot be guarded: {reason}; leave out guard= or group=")
        if self.background:
            reason = "ranks must not leave out samples on their own when there is no time for them"
            raise BadSetting(f"a group cannot learn in the background: {reason}; leave out background= or group=")
