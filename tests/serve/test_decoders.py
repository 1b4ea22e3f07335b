"""Images that would stop a service that decodes them itself."""

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import torch
from tests.serve.helpers import SIZE, array, grey16, picture, scan_bomb

from resitta.serve import decode_worker, decoders, images
from resitta.serve.decoders import Decoders
from resitta.serve.http_errors import Refused
from resitta.serve.images import Decoder
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.routes_predict import to_floats
from resitta.serve.service import Service
from resitta.serve.settings import Limits

LARGE = 8000, 5000


@pytest.fixture
def limits() -> Limits:
    return Limits(learn_batch=8)


def send(url: str, content: bytes, kind: str = "image/png", seconds: float = 60) -> httpx.Response:
    return httpx.post(f"{url}/predict", content=content, headers={"Content-Type": kind}, timeout=seconds)


class TestShortOfProcessorTime:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(decode_seconds=0.05, learn_batch=8)

    def test_a_worker_is_killed_and_replaced(self, url: str) -> None:
        for killed in (1, 2, 3):
            answer = send(url, grey16(*LARGE))
            assert answer.status_code == 413
            assert "more than 0.05 s of processor time" in answer.json()["error"]
            assert send(url, picture()).status_code == 200
            assert f"resitta_decoders_killed_total {killed}.0" in httpx.get(f"{url}/metrics").text


class TestShortOfMemory:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(decode_memory=2**28, learn_batch=8)

    def test_a_small_file_of_many_bytes_per_pixel_is_refused(self, url: str) -> None:
        answer = send(url, grey16(*LARGE))
        assert answer.status_code == 413
        assert "may take 256 MiB, this one takes 381" in answer.json()["error"]


def test_this_process_looks_into_no_body_whose_cost_is_not_known(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a hostile body could hold up the event loop here")

    for module in (images, decode_worker):
        monkeypatch.setattr(module, "payloads", never)
    monkeypatch.setattr(Decoder, "__call__", never)
    texts = {"images": [base64.b64encode(picture()).decode()]}
    assert httpx.post(f"{url}/predict", json=texts).status_code == 200
    assert httpx.post(f"{url}/predict", files=[("images", ("a.png", picture()))]).status_code == 200
    assert send(url, picture("WEBP")).status_code == 200
    assert send(url, scan_bomb(SIZE, SIZE, 5)).status_code == 200
    monkeypatch.undo()
    monkeypatch.setattr(decoders.Lane, "ask", never)
    for content in (picture(), picture("JPEG", width=500, height=375), array(torch.rand(3, SIZE, SIZE).numpy())):
        assert send(url, content, "application/octet-stream").status_code == 200
    assert service.predicted == 7


@asynccontextmanager
async def decoding(service: Service, limits: Limits) -> AsyncGenerator[Decoders, None]:
    async with Decoders(limits, ServiceMetrics(service), SIZE, "crop") as found:
        yield found


def pids(found: Decoders) -> list[int]:
    workers = (*found.small._workers, *found.large._workers)
    return [worker._process.pid for worker in workers]


@pytest.mark.parametrize("width", [10, 400, 1500])
def test_workers_find_what_the_decoder_finds(service: Service, limits: Limits, width: int) -> None:
    raw = [
        picture("JPEG", width=width, height=width),
        picture("WEBP", seed=1),
        array(torch.rand(3, SIZE, SIZE).numpy()),
    ]
    expected = [to_floats(torch.from_numpy(Decoder(size=SIZE)([one])))[0] for one in raw]

    async def scenario() -> list[torch.Tensor]:
        async with decoding(service, limits) as found:
            kinds = "application/octet-stream"
            return [to_floats(await found.decode(kinds, bytearray(one), client="a"))[0] for one in raw]

    assert all(torch.equal(one, other) for one, other in zip(asyncio.run(scenario()), expected, strict=True))


def test_a_client_with_large_images_does_not_hold_up_another(service: Service, limits: Limits) -> None:
    """The second of two clients has its turn after one image of the first, not after all."""
    order: list[str] = []

    async def scenario() -> None:
        async with decoding(service, limits) as found:

            async def one(client: str) -> None:
                await found.decode("image/png", bytearray(grey16(3000, 2000)), client=client)
                order.append(client)

            async with asyncio.TaskGroup() as tasks:
                for client in "aaaaaab":
                    tasks.create_task(one(client))

    asyncio.run(scenario())
    assert order.index("b") <= 3


def test_a_request_given_up_ends_its_worker(service: Service, limits: Limits) -> None:
    async def scenario() -> tuple[set[int], set[int]]:
        async with decoding(service, limits) as found:
            before = set(pids(found))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await found.decode("image/png", bytearray(grey16(*LARGE)), client="a")
            while len(pids(found)) < 4:
                await asyncio.sleep(0.05)
            await found.decode("image/png", bytearray(picture()), client="a")
            return before, set(pids(found))

    before, after = asyncio.run(scenario())
    assert len(before & after) == 3
    assert not any(running(pid) for pid in before | after)


def test_a_worker_that_ends_by_itself_is_replaced(service: Service, limits: Limits) -> None:
    async def scenario() -> None:
        async with decoding(service, limits) as found:
            for pid in pids(found):
                os.kill(pid, signal.SIGSEGV)
            await asyncio.sleep(0.2)
            for _ in range(4):
                await found.decode("image/png", bytearray(picture()), client="a")

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_are_small_and_limited(service: Service, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COPIES", 0)
    monkeypatch.setattr(decoders, "SPARE_MEMORY", -(2**28))

    async def scenario() -> None:
        async with decoding(service, limits) as found:
            for pid in pids(found):
                assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
                assert int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) < 80_000
            with pytest.raises(Refused, match="more memory") as caught:
                await found.decode("image/png", bytearray(grey16(*LARGE)), client="a")
            assert caught.value.status == 413

    asyncio.run(scenario())


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
