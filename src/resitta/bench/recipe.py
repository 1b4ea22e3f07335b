"""How to open a bench: everything by name, so that it travels to other processes and machines."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from resitta.bench.bench import Bench
from resitta.bench.protocol import Protocol, open_domains
from resitta.bench.run import Progress
from resitta.errors import BadSetting
from resitta.models import create as create_model


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model and data by name. Image sets are mapped from disk: each process opens them itself.

    `size`: the side that images of a folder or zip are resized to. `folder`: where relative paths begin.
    """

    protocol: Protocol
    model: str
    data: Path
    checkpoint: Path | None = None
    size: int | None = None
    out: Path
    device: str = "cpu"
    folder: Path = field(default_factory=Path.cwd)

    def open(self, progress: Progress | None = None) -> Bench:
        """Load the model and open the data; clean images are corrupted now, unless they have been before."""
        device = usable_device(self.device)
        model = create_model(self.model, self.checkpoint).to(device)
        options = {} if self.size is None else {"size": self.size}
        cache = self.out / "corrupted"
        sets = open_domains(self.protocol, self.data, cache=cache, device=device, progress=progress, **options)
        about = {"model": self.model, "checkpoint": self.checkpoint and self.checkpoint.name, "data": self.data.name}
        return Bench(self.protocol, model, sets, self.out, device, about)


def usable_device(name: str) -> torch.device:
    """Return a device by name, or say why it cannot be used.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadSetting(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device
