"""What tests share."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resitta.bench.record import RunRecord
from resitta.method import get_method, takes_source


def needed(method: str) -> dict[str, Any]:
    """The settings that a method cannot do without: source data for 10×10 images."""
    images = torch.rand(40, 3, 10, 10, generator=torch.Generator().manual_seed(5))
    return {"source": images} if takes_source(get_method(method)) else {}


def write_video(path: Path, frames: "np.ndarray[Any, Any]") -> None:
    """Write N×H×W×3 frames, ten a second, with a key frame at every fourth."""
    import av

    with av.open(path, "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=10, options={"qscale": "2", "flags": "+qscale"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.gop_size, stream.global_quality = "yuv420p", 4, 2 * 118
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


class Gate:
    """A strong view that stops an update until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, batch: Tensor) -> Tensor:
        self.reached.set()
        assert self.open.wait(20)
        return batch


def make_run(method: str = "tent", errors: tuple[float, ...] = (10.0, 20.0), **changes: Any) -> RunRecord:
    """A record: two domains of 100 samples unless told otherwise."""
    values: dict[str, Any] = {
        "method": method,
        "settings": {"lr": 0.001},
        "seed": 0,
        "domains": ("snow", "fog")[: len(errors)],
        "samples": 200,
        "errors": errors,
        "window": 20,
        "error_over_time": tuple(float(10 + i) for i in range(10)),
        "entropy_over_time": (0.5,) * 10,
        "drift_at": (64, 128, 192),
        "drift_over_time": (0.1, 0.2, 0.3),
        "drift_per_layer": {"bn1": 0.2, "bn2": 0.4},
        "bank_per_class": (3, 0, 5),
        "ece": 0.125,
        "nll": 0.75,
        "updates": 3,
        "seconds": 0.5,
        "device_memory_mb": 64.0,
    }
    values.update(changes)
    count, samples = len(values["domains"]), values["samples"]
    values.setdefault("borders", tuple(place * samples // count for place in range(count)))
    return RunRecord(**values)


OWN_METHOD = '''
from dataclasses import dataclass
import resitta
from resitta.methods.source import SourceLearner

@resitta.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(resitta.Method):
    """Source, with logits times a factor."""

    rate: float = resitta.setting(1.0)

    @property
    def trains(self):
        return "none"

    def start(self, network, generator):
        return Scaled(network)

class Scaled(SourceLearner):
    def predict(self, images):
        return FACTOR * self.network.predict(images)

    step = predict
'''
"""The file of a user who wrote a method; FACTOR stands for what they change in it."""


NEEDS_SOURCE = '''
from dataclasses import dataclass
import torch
import resitta
from resitta.methods.source import SourceLearner
from resitta.training.source_statistics import Source

class CentredLearner(SourceLearner):
    def __init__(self, network, mean):
        super().__init__(network)
        self.register_buffer("mean", mean.to(network.device, network.dtype), persistent=False)

    def predict(self, images):
        return self.network.predict(images) - self.mean

    step = predict

    def exportable_network(self):
        return None

@resitta.register("centred")
@dataclass(frozen=True, kw_only=True)
class Centred(resitta.Method):
    """Logits without their mean on source images."""

    without_source = "source"
    trains = "none"
    scale: float = resitta.setting(1.0)
    source: Source = resitta.setting(None)

    def prepare(self, network, batches):
        logits = torch.cat([network.predict(images) for images in batches])
        return {"mean": self.scale * logits.mean(dim=0)}

    def start(self, network, generator):
        return CentredLearner(network, self.source.tensors["mean"])
'''
"""The file of a method that needs source data."""
