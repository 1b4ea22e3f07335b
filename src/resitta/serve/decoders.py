"""Worker processes that decode images. A request that takes too long is ended by killing its worker.

There are two lanes, so that small images never wait for large ones. Within a lane, each client has a bounded share.
Small files of simple structure, whose cost is known in advance, are decoded in threads of this process: faster.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from resitta.errors import WorkerLost
from resitta.serve import files
from resitta.serve.decode_worker import ELSEWHERE, FLOATS, OK, REPLY, REQUEST, Job
from resitta.serve.http_errors import Refused
from resitta.serve.images import RAW, Decoder, TooMuchWork, media_type
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.settings import Limits, Resize
from resitta.serve.tensors import TENSORS, Wanted

PLAIN_BODY, PLAIN_WORK = 2**17, 2**18
"""Bytes and pixels of a simple file that is decoded in this process, in a few milliseconds; 500×375 is less."""
WORKERS = 2
"""Processes per lane."""
SMALL_WORK = 2**19
"""Pixels that a worker for small images decodes for one request; 640×480 is less."""
SMALL_BODY = 2**20
"""Bytes of a request for the lane of small images."""
NICE = 10
"""Niceness of the workers for large images, below the service itself."""
ONE_SEND = 2**16
"""Bytes of a body that is appended to its header to save a system call."""
START_SECONDS = 60.0
COPIES = 4
"""Copies of a request's body and result that a worker may hold at once."""
SPARE_MEMORY = 64 * 2**20
"""Further bytes that a worker may allocate."""
_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from resitta.serve.decode_worker import main
main(sys.argv[2:])
"""
"""Imports the worker from this package; it does not import torch."""
Reply = tuple[int, int, bytearray]
Gone = Callable[[], Awaitable[bool]]


class Decoders:
    """The decoders of one service, as an asynchronous context manager."""

    def __init__(self, limits: Limits, metrics: ServiceMetrics, size: int, resize: Resize) -> None:
        decoder: dict[str, Any] = {
            "size": size,
            "resize": resize,
            "max_images": limits.max_images,
            "max_pixels": limits.max_pixels,
            "max_memory": limits.decode_memory,
        }
        self.size = size
        self.plain = Decoder(**decoder | {"max_work": PLAIN_WORK})
        self.threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="resitta-decoder")
        result = limits.max_images * size * size * 3 * 4
        memory = limits.decode_memory + COPIES * (limits.max_body + result) + SPARE_MEMORY
        common: dict[str, Any] = {"seconds": limits.decode_seconds, "memory": memory}
        self.small = Lane(Job(decoder=decoder | {"max_work": SMALL_WORK}, nice=0, **common), metrics, share=WORKERS)
        self.large = Lane(Job(decoder=decoder, nice=NICE, **common), metrics, share=1)

    async def __aenter__(self) -> "Decoders":
        await asyncio.gather(self.small.start(), self.large.start())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.small.close(), self.large.close())
        self.threads.shutdown()

    async def decode(self, kind: str, body: bytearray, *, client: str, gone: Gone | None = None) -> Tensor:
        """Return the images in the body of a request, N×3×size×size: uint8, or float32 in [0, 1].

        Bodies that exceed the limits are refused, and large ones whose client disconnected before they were decoded.
        """
        if len(body) <= PLAIN_BODY and media_type(kind) in RAW:
            loop = asyncio.get_running_loop()
            if (images := await loop.run_in_executor(self.threads, self._decode_plain, bytes(body))) is not None:
                return images
        return (await self._decode_elsewhere(kind, body, client, gone))[0]

    async def decode_tensors(
        self, length: int, body: bytearray, *, client: str, gone: Gone | None = None
    ) -> tuple[Tensor, Wanted]:
        """Return the images of a request for tensors, as `decode` does, and what it wants; `length` is its JSON's."""
        images, rest = await self._decode_elsewhere(f"{TENSORS}; json={length}", body, client, gone)
        return images, json.loads(rest)

    async def _decode_elsewhere(
        self, kind: str, body: bytearray, client: str, gone: Gone | None
    ) -> tuple[Tensor, bytearray]:
        """Decode in a worker; return the images, and what else it replied."""
        status, count, found = ELSEWHERE, 0, bytearray()
        if len(body) <= SMALL_BODY:
            status, count, found = await self.small.ask(kind, body, client)
        if status == ELSEWHERE:
            status, count, found = await self.large.ask(kind, body, client, gone)
        if status not in (OK, FLOATS):
            raise Refused(status, found.decode())
        values = count * 3 * self.size * self.size
        images = torch.frombuffer(found, dtype=torch.uint8 if status == OK else torch.float32, count=values)
        return images.view(count, 3, self.size, self.size), found[images.nbytes :]

    def _decode_plain(self, raw: bytes) -> Tensor | None:
        """Decode a file if it is small and of simple structure: a thread cannot be killed."""
        if not files.is_plain(raw):
            return None
        try:
            return torch.from_numpy(self.plain([raw]))
        except TooMuchWork:
            return None


class Lane:
    """Workers with the same job. Each client may have `share` requests queued; its other requests wait."""

    def __init__(self, job: Job, metrics: ServiceMetrics, *, share: int) -> None:
        self.job = job
        self.metrics = metrics
        self.share = share
        self._workers: set[Worker] = set()
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all workers."""
        await asyncio.gather(*(self._add() for _ in range(WORKERS)))

    async def close(self) -> None:
        """Kill all workers."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in self._workers))

    async def ask(self, kind: str, body: bytearray, client: str, gone: Gone | None = None) -> Reply:
        """Decode a body in the next idle worker."""
        if (turns := self._shares.get(client)) is None:
            self._shares[client] = turns = asyncio.Semaphore(self.share)
        async with turns:
            while not (worker := await self._idle.get()).running:
                self._release(worker)
            try:
                if gone is not None and await gone():
                    raise Refused(499, "the client disconnected before its images were decoded", close=True)
                return await worker.ask(kind, body)
            except WorkerLost as error:
                raise Refused(413, f"the images cannot be decoded ({error}); send smaller or other ones") from None
            finally:
                self._release(worker)

    def _release(self, worker: "Worker") -> None:
        if worker.running:
            self._idle.put_nowait(worker)
            return
        self.metrics.killed.inc()
        self._workers.discard(worker)
        self._do(worker.wait())
        self._do(self._replace())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self) -> None:
        """Start another worker; retry until it runs."""
        while True:
            with suppress(WorkerLost, OSError, TimeoutError):
                return await self._add()
            await asyncio.sleep(1)

    async def _add(self) -> None:
        worker = await Worker.start(self.job)
        self._workers.add(worker)
        self._idle.put_nowait(worker)


class Worker:
    """One process and the socket to it."""

    def __init__(self, job: Job) -> None:
        """Start a process that shares nothing but a socket; it exits when the socket is closed."""
        self.job = job
        self._killed = False
        self._socket, other = socket.socketpair()
        with other:
            arguments = [str(Path(__file__).parents[2]), str(other.fileno()), json.dumps(asdict(job))]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,  # Ctrl-C in a terminal must not reach the workers
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        self._socket.setblocking(False)

    @classmethod
    async def start(cls, job: Job) -> "Worker":
        """Start a process and wait until it has imported what it needs."""
        worker = await asyncio.to_thread(cls, job)
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker._reply()
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def running(self) -> bool:
        """Whether it can decode."""
        return not self._killed and self._process.poll() is None

    async def ask(self, kind: str, body: bytearray) -> Reply:
        """Decode a body. The worker is killed if this is cancelled, since decoding cannot be interrupted."""
        loop, encoded = asyncio.get_running_loop(), kind.encode("latin-1", "replace")
        try:
            head = REQUEST.pack(len(encoded), len(body)) + encoded
            if len(body) <= ONE_SEND:
                await loop.sock_sendall(self._socket, head + body)
            else:
                await loop.sock_sendall(self._socket, head)
                await loop.sock_sendall(self._socket, body)
            return await self._reply()
        except OSError:
            self.kill()
            raise WorkerLost(await self._reason()) from None
        except BaseException:
            self.kill()
            raise

    async def _reply(self) -> Reply:
        status, count, size = REPLY.unpack(await self._read(REPLY.size))
        return status, count, await self._read(size)

    async def _read(self, size: int) -> bytearray:
        loop, found = asyncio.get_running_loop(), bytearray(size)
        view = memoryview(found)
        while view:
            count = await loop.sock_recv_into(self._socket, view)
            if not count:
                raise ConnectionResetError("the worker has ended")
            view = view[count:]
        return found

    async def _reason(self) -> str:
        code = await asyncio.to_thread(self._process.wait)
        if code == -signal.SIGPROF:
            return f"they took more than {self.job.seconds:g} s of processor time"
        return f"the decoder ended with status {code}"

    def kill(self) -> None:
        """Kill the process."""
        self._killed = True
        self._process.kill()
        self._socket.close()

    async def wait(self) -> None:
        """Reap the process."""
        await asyncio.to_thread(self._process.wait)
