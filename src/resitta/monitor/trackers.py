"""Experiment trackers: `adapter.listen(tracker)` logs events as metrics of a run.

>>> from resitta.monitor.events import LabelPriorSwitched
>>> class Printed(Tracker):
...     def log(self, numbers, samples):
...         print(samples, numbers)
>>> Printed(every=1000)(LabelPriorSwitched(samples=64, on=True))
64 {'resitta/label_prior': 1.0}
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from resitta.errors import require
from resitta.monitor.events import Event, Restarted, Updated, numbers_of


class Tracker(ABC):
    """Events as curves of an experiment tracker: an update at most every `every` samples, other events at once."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._due = 0

    def __call__(self, event: Event) -> None:
        """Log one event, if it is due."""
        if isinstance(event, Restarted):
            self._due = 0
        if isinstance(event, Updated):
            if event.samples < self._due:
                return
            self._due = event.samples + self.every
        if numbers := numbers_of(event):
            self.log(numbers, event.samples)

    @abstractmethod
    def log(self, numbers: dict[str, float], samples: int) -> None:
        """Log numbers by name, at a number of samples."""


class MLflow(Tracker):
    """Events as metrics of an MLflow run, with the number of samples as step. Needs the extra `mlflow`.

    `adapter.listen(MLflow())` logs to the active run, or starts one; `run_id` names another. `module` is the module
    mlflow, or one with its functions. Metrics are sent from a thread of MLflow, so that a slow server does not delay
    the stream; `close()` waits for them.
    """

    def __init__(self, run_id: str | None = None, *, every: int = 1000, module: Any = None) -> None:
        super().__init__(every)
        mlflow = module or require("mlflow", "mlflow")
        self.run_id: str = run_id or (mlflow.active_run() or mlflow.start_run()).info.run_id
        self._client = mlflow.MlflowClient()
        self._sent: list[Any] = []

    def log(self, numbers: dict[str, float], samples: int) -> None:
        """Log metrics."""
        send = partial(self._client.log_metric, self.run_id, step=samples, synchronous=False)
        self._sent = [send(name, value) for name, value in numbers.items()]

    def close(self) -> None:
        """Wait until the newest metrics are stored; the run stays open."""
        for sent in self._sent:
            sent.wait()


class WandB(Tracker):
    """Events as charts of a Weights & Biases run, over the number of samples. Needs the extra `wandb`.

    `adapter.listen(WandB(run))`; without a run, to the active one, or one that `wandb.init()` starts. The number of
    samples is a metric of its own, since the steps of a run cannot go back and a reset starts at 0.
    """

    def __init__(self, run: Any = None, *, every: int = 1000) -> None:
        super().__init__(every)
        if run is None:
            wandb: Any = require("wandb", "wandb")
            run = wandb.run or wandb.init()
        self.run = run
        run.define_metric("resitta/samples")
        run.define_metric("resitta/*", step_metric="resitta/samples")

    def log(self, numbers: dict[str, float], samples: int) -> None:
        """Log a row."""
        self.run.log({**numbers, "resitta/samples": samples})
