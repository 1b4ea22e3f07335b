"""What a reader has to walk through: the files, functions and frames of this package that one operation runs.

    python benchmarks/walk.py [--json] [--list]

Walks, on the CPU: one ResiTTA step with an update, one run of `resitta.bench.run`, one `POST /predict` until it is
answered, and the same with the thread that learns from its image. Frames of other packages and of comprehensions do not
count. `batch_norm` is how many frames of the package are on the stack when
the first BatchNorm layer, or its wrapper, is called in the step. `--list` names the files and functions.
"""

import argparse
import io
import json
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import resitta
from resitta.norm.bn_layers import AdaptiveBN

PACKAGE = str(Path(resitta.__file__).parent)


@dataclass
class Walk:
    """What was met on the way; one of these may follow several threads."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    without: str = ""
    """The name of a thread that is not followed."""
    over: bool = False
    depth: int = 0
    batch_norm: int | None = None

    def follow(self, walk: Callable[[], object]) -> "Walk":
        """Call a function, and note the frames of it and of the threads it starts."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            walk()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self

    @property
    def files(self) -> list[str]:
        """The files of the package."""
        return sorted({name for name, _ in self.functions})

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call" or self.over or threading.current_thread().name == self.without:
            return
        code = frame.f_code
        own = _own(code)
        if own:
            self.functions.add((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))
            self.depth = max(self.depth, _frames(frame))
        if self.batch_norm is None and code.co_name == "forward":
            layer = frame.f_locals.get("self")
            if isinstance(layer, _BatchNorm | AdaptiveBN):
                self.batch_norm = _frames(frame)


def _own(code: types.CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")


def _frames(frame: types.FrameType | None) -> int:
    """How many frames of the package are on the stack."""
    found = 0
    while frame is not None:
        found += _own(frame.f_code)
        frame = frame.f_back
    return found


def network() -> nn.Module:
    """A classifier that is no part of the package."""
    torch.manual_seed(0)
    body = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(8, 5)).eval()


def step() -> Walk:
    """One step with an update, of an adapter that has made two before: what is set up once is set up by then."""
    adapter, images = resitta.adapt(network(), "resitta"), torch.rand(64, 3, 16, 16)
    adapter(images)
    adapter(images)
    return Walk().follow(lambda: adapter(images))


def bench() -> Walk:
    """One run of one method on two corruptions of a few images."""
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    given = (images, np.arange(40) % 5)
    return Walk().follow(lambda: resitta.bench.run(network(), given, ["resitta"], corruptions=["fog", "snow"]))


def predict(without: str = "") -> Walk:
    """One request for a prediction, and learning from it, unless the thread that learns is left out."""
    from fastapi.testclient import TestClient  # noqa: PLC0415  (only this walk needs a service)

    from resitta.serve.app import create_app  # noqa: PLC0415
    from resitta.serve.service import Service  # noqa: PLC0415

    walk, learned, file = Walk(without=without), threading.Event(), io.BytesIO()
    np.save(file, np.random.default_rng(0).random((1, 3, 16, 16), np.float32))

    class Learned(resitta.Callback):
        """Tells when the image has been learned from."""

        def after_step(self, *_: object) -> None:
            learned.set()

    with tempfile.TemporaryDirectory() as folder:
        adapter = resitta.adapt(network(), "resitta", update_every=1)
        adapter.add_callback(Learned())
        engine = Service(adapter, size=16, state=Path(folder))

        def ask() -> None:
            with TestClient(create_app(engine, token="walk")) as client:
                walk.functions.clear()
                kind = {"Content-Type": "application/x-npy"}
                client.post("/predict", content=file.getvalue(), headers=kind).raise_for_status()
                learned.wait(30)
                walk.over = True  # closing the service is not part of it

        walk.follow(ask)
    return walk


def main() -> None:
    """Print all walks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    walks = {"step": step(), "bench": bench(), "predict": predict("resitta-writer"), "and learn": predict()}
    table = {
        name: {
            "files": len(walk.files),
            "functions": len(walk.functions),
            "depth": walk.depth,
            "batch_norm": walk.batch_norm,
        }
        for name, walk in walks.items()
    }
    if chosen.json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        print(f"{name:9}", "  ".join(f"{key} {value}" for key, value in row.items()))
        for file in walks[name].files if chosen.list else ():
            print("   ", file, *sorted(function for at, function in walks[name].functions if at == file))


if __name__ == "__main__":
    main()
