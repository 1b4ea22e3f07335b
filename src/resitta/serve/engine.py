"""The engine: a reader that predicts and a writer that learns, joined, without any HTTP."""

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting
from resitta.serve.events import Events
from resitta.serve.reader import Answer, Reader
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer


class Engine:
    """Serves one adapter: `submit` images, and the state moves on behind them.

    >>> import tempfile, resitta
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> with Engine(resitta.adapt(model), size=8, state=Path(tempfile.mkdtemp())) as engine:
    ...     answer = engine.submit(torch.rand(2, 3, 8, 8)).result()
    >>> answer.logits.shape, answer.version, answer.learned
    (torch.Size([2, 4]), 0, 2)
    """

    def __init__(
        self, adapter: Adapter, *, size: int, state: Path, limits: Limits | None = None, names: Sequence[str] = ()
    ) -> None:
        self.adapter = adapter
        self.size = size
        self.limits = limits or Limits()
        self.device = adapter.source.device
        self.classes = self._count_classes()
        if names and len(names) != self.classes:
            raise BadSetting(f"the model has {self.classes} classes, found {len(names)} names; give one for each")
        self.names = tuple(names) or tuple(str(label) for label in range(self.classes))
        self.events = Events()
        self.claim = Claim(state)
        try:
            self.writer = Writer(adapter, StateFolder(state, keep=self.limits.keep), self.limits, self.events)
        except BaseException:
            self.claim.release()
            raise
        self.reader = Reader(self._predict, self.limits)
        self.predicted = 0

    def start(self) -> None:
        """Start both threads."""
        self.writer.start()
        self.reader.start()

    def close(self) -> None:
        """Answer what waits, save the state, stop both threads."""
        self.reader.close()
        self.writer.close()
        self.claim.release()

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, images: Tensor, client: str = "") -> "Future[Answer]":
        """Ask for the predictions of images, N×3×size×size in [0, 1]; they will be learned from as well.

        `client`: who sends them. All clients have the same share of what is learned from.
        """
        return self.reader.submit(images, client)

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.reader.alive and self.writer.alive

    @property
    def concurrent(self) -> bool:
        """Whether predictions are free of the updates: only methods that can be exported allow it."""
        return self.writer.published.network is not None

    def stats(self) -> dict[str, Any]:
        """The state of the service as JSON. Never waits for the writer."""
        writer, adapted = self.writer, self.writer.stats
        return {
            "method": self.adapter.method.name,
            "version": writer.published.version,
            "learning": not writer.inbox.paused,
            "predictions_wait_for_updates": not self.concurrent,
            "predicted": self.predicted,
            **vars(writer.inbox.counters),
            "waiting_for_prediction": self.reader.waiting,
            "adapter": {
                "samples": adapted.samples,
                "updates": adapted.updates,
                "mean_entropy": adapted.mean_entropy,
                "bank": None if adapted.bank is None else vars(adapted.bank),
                "drift": adapted.drift,
            },
            "snapshots": writer.folder.versions(),
            "failed_saves": writer.failed_saves,
            "guard_fired": writer.guard_fired,
            "clients": writer.clients,
            "events": [vars(event) for event in self.events.newest()],
            "names": self.names,
            "size": self.size,
        }

    def _predict(self, images: Tensor, clients: Sequence[str]) -> tuple[Tensor, int, list[bool]]:
        """Predict in the reader's thread: from the published copy, or through the writer where there can be none."""
        published = self.writer.published
        moved = images.to(self.device, self.adapter.source.dtype)
        if published.network is None:
            logits, version, learned = self.writer.inbox.ask(partial(self.writer.step, moved, clients)).result()
        else:
            with torch.inference_mode():
                logits = published.network(moved)
            version, taken = published.version, self.writer.inbox.offer(images, logits, clients)
            muted = self.writer.muted
            learned = [is_taken and name not in muted for is_taken, name in zip(taken, clients, strict=True)]
        self.predicted += len(images)
        return logits, version, learned

    def _count_classes(self) -> int:
        """Ask the model about one grey image; a model that does not take such images is refused here."""
        with self.adapter.paused() as adapter:
            logits: Tensor = adapter(torch.full((1, 3, self.size, self.size), 0.5, device=self.device))
        return logits.shape[1]
