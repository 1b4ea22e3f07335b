"""A benchmark: several methods and seeds under one protocol, one record per run, finished runs never run again."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resitta.adapter import Adapter
from resitta.bench.protocol import Domain, Protocol
from resitta.bench.record import RunRecord, environment, load, save, settings_of
from resitta.bench.run import Progress, run
from resitta.method import Method
from resitta.streams.corrupted import fingerprint
from resitta.streams.datasets import ImageSet


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run that is wanted: a method with its settings, and a seed."""

    method: Method
    seed: int

    @property
    def title(self) -> str:
        """What a progress bar says: the method, the settings that are not its defaults, the seed."""
        values = [(field, getattr(self.method, field.name)) for field in fields(self.method)]
        changed = [f"{field.name}={value}" for field, value in values if value != field.default]
        return ", ".join([self.method.name, *changed, f"seed {self.seed}"])


@dataclass(frozen=True)
class Bench:
    """A model and the domains of a protocol, ready for jobs. Records go into the folder `out`."""

    protocol: Protocol
    model: nn.Module
    sets: dict[Domain, ImageSet]
    out: Path
    device: torch.device
    about: dict[str, Any]
    """What else defines the runs: the names of the model, its checkpoint and the data."""
    options: dict[str, Any] = field(default_factory=dict)
    """How adapters are made, beside their method and seed: `precision` and the like."""
    circumstances: dict[str, Any] = field(default_factory=dict)
    """What explains the runs' speed without changing their numbers, such as other processes on the device."""

    def path(self, job: Job) -> Path:
        """The file of a job's record; its name holds a digest of all that defines the run."""
        text = json.dumps(self.identity(job), sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self.out / f"{job.method.name}-{job.seed}-{digest}.json"

    def identity(self, job: Job) -> dict[str, Any]:
        """All that defines a run, down to the pixels and the weights."""
        return {
            "protocol": asdict(self.protocol),
            "method": job.method.name,
            "settings": settings_of(job.method),
            "seed": job.seed,
            "weights": weights_digest(self.model),
            "images": [fingerprint(images) for images in self.sets.values()],
            **self.options,
            **self.about,
        }

    def record(self, job: Job, progress: Progress | None = None) -> RunRecord:
        """Return the record of a job: from its file if it is finished, else by running it."""
        path = self.path(job)
        if not path.exists():
            adapter = Adapter(self.model, job.method, seed=job.seed, **self.options)
            stream = self.protocol.stream(self.sets, job.seed)
            result = run(adapter, stream, batch_size=self.protocol.batch_size, progress=progress)
            save(path, result, **self.identity(job), environment=environment(self.device) | self.circumstances)
        elif progress:
            progress(1, 1)
        return load(path)

    def records(self, jobs: Sequence[Job], bar: Callable[[str], Progress] | None = None) -> list[RunRecord]:
        """Return the records of all jobs, in order."""
        return [self.record(job, bar(job.title) if bar else None) for job in jobs]


def weights_digest(model: nn.Module) -> str:
    """A short name for the weights of a model."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
