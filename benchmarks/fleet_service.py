"""Twenty cameras at one service over HTTP, of which the last may send noise: with a fleet, and with one adapter.

    python benchmarks/fleet_service.py --images 192                                      # two minutes on one core

Each camera is a client of its own, sends two images per request, shows another corruption and correlated classes; the
twentieth shows clean images, or sends noise, or five times as much noise as the others send images. All of them wait
until the service has learned from a round, so that the result does not depend on the speed of the machine. The services
run with the defaults of `resitta serve`. Needs the folder of testbeds: $RESITTA_BEDS, or --beds.
"""

import argparse
import io
import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from beds import with_testbeds
from fleet import CAMERAS, EACH, NOISY, Cameras
from torch import Tensor

from resitta.serve.app import create_app
from resitta.serve.fleet_service import FleetService
from resitta.serve.launch import make_adapter, make_fleet
from resitta.serve.learning import QueueLearner
from resitta.serve.server import listen, make_server
from resitta.serve.service import Service
from resitta.serve.settings import Limits

LIMITS = Limits(proxies=1, save_every=3600)
"""Behind a proxy, which tells the cameras apart by their addresses."""
MORE = 5
"""How many requests of noise a flood sends for one of another camera."""


@contextmanager
def running(service: Service) -> Iterator[str]:
    """Serve on a free port."""
    with listen("127.0.0.1", 0) as on:
        server = make_server(create_app(service, token="a token for measuring only"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [on]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{on.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Clients:
    """Sends the images of a round, each camera's in a request of its own and all at once."""

    def __init__(self, service: Service, url: str, *, flood: bool) -> None:
        self.service, self.url, self.flood = service, url, flood
        self.pool = ThreadPoolExecutor(CAMERAS)

    def __call__(self, images: Tensor, names: list[str]) -> Tensor:
        """Return the probabilities of each image, once all are learned from."""
        rounds = images.view(EACH, CAMERAS, *images.shape[1:])
        answers = list(self.pool.map(self.send, range(CAMERAS), rounds.unbind(1), names))
        assert isinstance(self.service.writer, QueueLearner)
        self.service.writer.thread.settle()
        return torch.stack(answers, dim=1).flatten(0, 1)

    def send(self, camera: int, images: Tensor, name: str) -> Tensor:
        """The answer to a camera; a flood repeats its request."""
        for _ in range(MORE if self.flood and name == NOISY else 1):
            body = io.BytesIO()
            np.save(body, images.numpy())
            headers = {"Content-Type": "application/x-npy", "X-Forwarded-For": f"10.0.0.{camera}"}
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.url}/predict", body.getvalue(), headers)
            ) as answer:
                found = json.load(answer)["predictions"]
        return torch.tensor([prediction["probabilities"] for prediction in found])


def errors(ground: Cameras, make: Callable[[Path], Service], *, noise: bool, flood: bool = False) -> Tensor:
    """The errors of the nineteen cameras in per cent, at a new service."""
    with tempfile.TemporaryDirectory() as folder:
        service = make(Path(folder))
        with running(service) as url:
            return ground.errors(Clients(service, url, flood=flood), noise=noise)[:-1]


def single(ground: Cameras, folder: Path) -> Service:
    """One adapter for all cameras, with its guard and the screening of clients."""
    return Service(make_adapter(lambda: ground.model, method=ground.args.method), size=32, state=folder, limits=LIMITS)


def fleet(ground: Cameras, folder: Path) -> Service:
    """Each camera by itself."""
    made = make_fleet(folder, max_streams=1000, model=lambda: ground.model, method=ground.args.method)
    return FleetService(made, size=32, limits=LIMITS)


def main() -> None:
    """Print the mean error of the nineteen cameras for each service and each behaviour of the twentieth."""
    parser = with_testbeds(__doc__)
    parser.add_argument("--method", default="resitta")
    parser.add_argument("--images", type=int, default=192, help="images per camera")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/fleet"), help="folder of corrupted images")
    args: argparse.Namespace = parser.parse_args()
    ground = Cameras(args)
    print(f"{args.bed}, {args.method}, {args.images} images per camera: error of the nineteen (%)")
    for name, make in (("one adapter", single), ("a fleet", fleet)):
        calm = errors(ground, partial(make, ground), noise=False)
        noisy = errors(ground, partial(make, ground), noise=True)
        flooded = errors(ground, partial(make, ground), noise=True, flood=True)
        found = ", ".join(f"{each.mean():.2f}" for each in (calm, noisy, flooded))
        differ = f"{int((calm != noisy).sum())} and {int((calm != flooded).sum())}"
        print(f"{name}: calm, with noise, with a flood of it {found}; {differ} cameras differ", flush=True)


if __name__ == "__main__":
    main()
