"""Events as curves in TensorBoard. Needs the extra `tensorboard`."""

from os import PathLike
from typing import Any

from resitta.errors import require
from resitta.monitor.events.event import Event, GuardEnded, GuardFired, Updated


class TensorBoard:
    """Writes each update and each firing of a guard to a folder, over the number of samples.

    `adapter.listen(TensorBoard("runs/camera-7"))`, then `tensorboard --logdir runs`.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        require("tensorboard", "tensorboard")
        self.writer: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if isinstance(event, Updated):
            curves = {"entropy": event.entropy, "drift": event.drift, "turnover": event.turnover}
            for name, value in curves.items():
                if value is not None:
                    self.writer.add_scalar(f"resitta/{name}", value, event.samples)
        if isinstance(event, GuardFired):
            self.writer.add_scalar(f"resitta/guard/{event.reason}", event.value, event.samples)
            self.writer.add_text("resitta/guard", f"{event.reason} {event.value:.4g}: {event.action}", event.samples)

        if isinstance(event, GuardEnded):
            text = f"{event.reason} has ended: found {event.found} times in {event.lasted} samples"
            self.writer.add_text("resitta/guard", text, event.samples)

    def close(self) -> None:
        """Write what is still waiting."""
        self.writer.close()
