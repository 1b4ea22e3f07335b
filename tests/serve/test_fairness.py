"""One client among others: what it sends is predicted, but it decides nothing for the others. Over HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tests.serve.helpers import TOKEN, array, until, writer_of
from torch import Tensor, nn

import resitta
from resitta.serve.app import create_app
from resitta.serve.server import listen, make_server
from resitta.serve.service import Service
from resitta.serve.settings import Limits
from resitta.training.entropy import entropy

SIZE = 16
HONEST, OTHER, HOSTILE = (f"127.0.0.{number}" for number in (1, 2, 3))
Send = Callable[[str, Tensor], dict[str, Any]]


@pytest.fixture
def service(model: nn.Module, tmp_path: Path) -> Service:
    adapter = resitta.adapt(model, "resitta", update_every=16, capacity=16, guard=True)
    limits = Limits(learn_batch=8, learn_queue=64, max_images=32)
    return Service(adapter, size=SIZE, state=tmp_path / "state", limits=limits)


@pytest.fixture
def send(service: Service) -> Iterator[Send]:
    """Post images from an address of this machine, and return the answer."""
    with ExitStack() as stack:
        on = stack.enter_context(listen("127.0.0.1", 0))
        server = make_server(create_app(service, token=TOKEN))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [on]})
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        until(lambda: server.started)
        url = f"http://127.0.0.1:{on.getsockname()[1]}"
        clients = {address: stack.enter_context(client_from(address, url)) for address in (HONEST, OTHER, HOSTILE)}

        def send(address: str, images: Tensor) -> dict[str, Any]:
            body = array(images.mul(255).round().byte().permute(0, 2, 3, 1).numpy())
            answer = clients[address].post("/predict", content=body, headers={"Content-Type": "application/x-npy"})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        yield send


def client_from(address: str, url: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=url, transport=transport, timeout=30)


def pictures(n: int, seed: int) -> Tensor:
    """Smooth pictures: nothing that a guard would call noise."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 4, 4, generator=rng)
    return nn.functional.interpolate(coarse, size=SIZE, mode="bilinear").clamp(0, 1)


def settled(service: Service) -> None:
    until(lambda: service.writer.report().counters.waiting == 0)


def bad(kind: str, n: int, seed: int) -> Tensor:
    if kind == "black":
        return torch.zeros(n, 3, SIZE, SIZE)
    return torch.rand(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["black", "noise"])
def test_the_noise_of_one_client_does_not_stop_learning_for_the_others(service: Service, send: Send, kind: str) -> None:
    for seed in range(12):
        send(HOSTILE, bad(kind, 24, seed))
        for address in (HONEST, OTHER):
            send(address, pictures(4, seed))
        settled(service)
    memory = service.adapter.learner.memory()
    assert memory is not None
    passed = memory.clock - 96
    assert passed >= 0, "every image of the honest clients came into the memory"
    assert passed < 29, "and of the others only those few that cannot be told from pictures, before all were muted"
    assert service.adapter.stats.updates == memory.clock // 16


def test_a_flood_gets_its_share_and_displaces_nobody(service: Service, send: Send) -> None:
    release = threading.Event()
    writer_of(service).thread.submit(lambda: release.wait(30))
    for seed in range(10):
        send(HOSTILE, pictures(32, seed))
    learned = [send(address, pictures(4, 99))["learned"] for address in (HONEST, OTHER)]
    release.set()
    settled(service)
    assert learned == [4, 4]
    counters = service.writer.report().counters
    assert (counters.learned, counters.dropped) == (64, 264)
    assert sorted(client["learned"] for client in stats_of(service)) == [4, 4, 56]


def test_a_client_that_is_muted_is_announced_and_regains_its_voice(service: Service, send: Send) -> None:
    for seed in range(4):
        send(HONEST, pictures(4, seed))
        send(HOSTILE, bad("black", 24, seed))
        settled(service)
    answer = send(HOSTILE, pictures(8, 0))
    assert len(answer["predictions"]) == 8
    assert answer["learned"] == 0
    assert send(HONEST, pictures(4, 5))["learned"] == 4
    settled(service)
    (muted,) = [client["name"] for client in stats_of(service) if not client["is_allowed"]]
    (event,) = [event["text"] for event in service.stats()["events"]]
    assert event.startswith(f"client {muted} is predicted, but no longer learned from")
    for seed in range(10):
        send(HOSTILE, pictures(16, seed))
        settled(service)
    assert send(HOSTILE, pictures(8, 1))["learned"] == 8
    assert service.stats()["events"][0]["text"].startswith(f"client {muted} is learned from again")


def test_images_that_the_network_is_sure_of_do_not_take_over_the_memory(
    service: Service, send: Send, model: nn.Module
) -> None:
    candidates = pictures(400, 7)
    with torch.no_grad():
        order = entropy(model(candidates)).argsort()
    surest, rest = candidates[order[:64]], candidates[order[200:]]
    for turn in range(12):
        send(HOSTILE, surest[torch.arange(turn * 16, turn * 16 + 16) % 64])
        for number, address in enumerate((HONEST, OTHER)):
            send(address, rest[8 * turn + 4 * number : 8 * turn + 4 * number + 4])
        settled(service)
    memory = service.adapter.learner.memory()
    assert memory is not None
    stored = memory.samples.mul(255).round().flatten(1).numpy()
    known = {row.tobytes() for row in surest.mul(255).round().flatten(1).numpy()}
    hostile = sum(row.tobytes() in known for row in np.asarray(stored))
    assert hostile <= 6, "a third of 16"


def stats_of(service: Service) -> list[dict[str, Any]]:
    """The clients in /stats, once they are up to date."""
    until(lambda: sum(client["learned"] for client in service.stats()["clients"]) == service.stats()["learned"])
    clients: list[dict[str, Any]] = service.stats()["clients"]
    return clients
