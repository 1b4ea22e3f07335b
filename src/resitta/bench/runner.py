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
from resitta.bench.loop import Progress, run_stream
from resitta.bench.protocol import Domain, Protocol
from resitta.bench.record import RunRecord, environment, identity_in, load, read_json, save, settings_of, write_json
from resitta.bench.sources import described, method_source
from resitta.checkpoint.fingerprint import digest_tensors
from resitta.data.corrupted import fingerprint
from resitta.data.datasets import ImageSet
from resitta.errors import BadData
from resitta.method import Method
from resitta.user_code import with_files


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run that is wanted: a method with its settings, and a seed. A method of a user's file can be pickled too.

    `source` is the digest of the method's source in the process that made the job.
    """

    method: Method
    seed: int
    source: str | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The method and the settings that are not its defaults."""
        values = [(setting, getattr(self.method, setting.name)) for setting in fields(self.method)]
        changed = [f"{setting.name}={described(value)}" for setting, value in values if value != setting.default]
        return ", ".join([self.method.name, *changed])

    @property
    def title(self) -> str:
        """What a progress bar says: the label and the seed."""
        return f"{self.label}, seed {self.seed}"

    @property
    def method_source(self) -> str | None:
        """The digest of the method's source; None if there is no file to compare."""
        return self.source or method_source(type(self.method))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {"method": self.method, "seed": self.seed, "source": self.method_source}
        return with_files(type(self), values, self.method, *vars(self.method).values())


@dataclass(frozen=True)
class Bench:
    """A model and the domains of a protocol, ready for jobs. Records go into the folder `out`."""

    protocol: Protocol
    model: nn.Module
    sets: dict[Domain, ImageSet]
    out: Path
    device: torch.device
    about: dict[str, Any]
    """What else defines the runs: the names of the model, its checkpoint and the data, and what is known of them."""
    options: dict[str, Any] = field(default_factory=dict)
    """How adapters are made, beside their method and seed: `precision` and the like."""
    circumstances: dict[str, Any] = field(default_factory=dict)
    """What explains the runs' speed without changing their numbers, such as other processes on the device."""
    warning: str = ""
    """What to tell people before and after the runs, such as that the weights are random."""

    def path(self, job: Job) -> Path:
        """The file of a job's record; its name holds a digest of all that defines the run."""
        return self.out / f"{job.method.name}-{job.seed}-{identity_digest(self.identity(job))}.json"

    def identity(self, job: Job) -> dict[str, Any]:
        """All that defines a run, down to the pixels, the weights and the source code.

        `version` is the library's; `method_source` covers the method's own files as `resitta.bench.sources` says, and
        `about` the source of a model of the user's own. A change in another file of the library shows in its version.
        """
        import resitta  # noqa: PLC0415  (the version lives in the package itself)

        return {
            "version": resitta.__version__,
            "protocol": asdict(self.protocol),
            "method": job.method.name,
            "method_source": job.method_source,
            "settings": settings_of(job.method),
            "seed": job.seed,
            "weights": weights_digest(self.model),
            "images": [fingerprint(images) for images in self.sets.values()],
            **self.options,
            **self.about,
        }

    def finished(self, job: Job) -> bool:
        """Whether a job has a record that can stand for it; never if the code it ran cannot be compared."""
        return self._comparable(job) and self.path(job).exists()

    def record(self, job: Job, progress: Progress | None = None, *, rerun: bool = False) -> RunRecord:
        """Return the record of a job: from its file if it is finished, else by running it."""
        path = self.path(job)
        if rerun or not self._comparable(job) or not path.exists():
            adapter = Adapter(self.model, job.method, seed=job.seed, **self.options)
            stream = self.protocol.stream(self.sets, job.seed)
            result = run_stream(adapter, stream, batch_size=self.protocol.batch_size, progress=progress)
            surroundings = environment(self.device) | self.circumstances
            save(path, result, **self.identity(job), environment=surroundings)
        elif progress:
            progress(1, 1)
        return load(path)

    def keep(self, job: Job, content: dict[str, Any]) -> RunRecord:
        """Write the content of a record that was made elsewhere, unless it lies here already."""
        ours, theirs = self.identity(job), identity_in(content) | {"seed": content["seed"]}
        if identity_digest(ours) != identity_digest(theirs):
            differ = [key for key in ours if identity_digest(ours[key]) != identity_digest(theirs.get(key))]
            reason = f"its {', '.join(differ) or 'identity'} was not the same in the worker"
            advice = "give the same command again and leave the files as they are"
            raise BadData(f"{job.title} is not the run that was asked for: {reason}; {advice}")
        path = self.path(job)
        if not path.exists() or read_json(path) != content:  # the worker's disk is not ours
            write_json(path, content)
        return load(path)

    def _comparable(self, job: Job) -> bool:
        """Whether the code of the method and of the model lies in files that can be compared."""
        return None not in (job.method_source, self.about.get("model_source", ""))

    def records(self, jobs: Sequence[Job], bar: Callable[[str], Progress] | None = None) -> list[RunRecord]:
        """Return the records of all jobs, in order."""
        return [self.record(job, bar(job.title) if bar else None) for job in jobs]


def identity_digest(identity: Any) -> str:
    """A short name for all that defines a run."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]


def weights_digest(model: nn.Module) -> str:
    """A short name for the weights of a model."""
    return digest_tensors(model.state_dict().items(), types=False)[:12]
