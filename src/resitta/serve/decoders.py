"""Worker processes that decode images, so that no request can hold up another: each may be killed at any moment.

Two lanes: small images never wait behind large ones. Within a lane, clients take turns. Only small files of a plain
structure, whose cost is known beforehand, are decoded by threads of this process, where that takes the least time.
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
from resitta.serve.forms import RAW, kind_of
from resitta.serve.http_errors import Refused
from resitta.serve.images import Decoder, TooMuchWork
from resitta.serve.metrics import Metrics
from resitta.serve.settings import Limits, Resize

PLAIN_BODY, PLAIN_WORK = 2**17, 2**18
"""Bytes of a plain file, and its pixels, that are decoded in this process: a few milliseconds; 500×375 are fewer."""
WORKERS = 2
"""Processes per lane."""
SMALL_WORK = 2**19
"""Pixels that a worker for small images goes over for one request; 640×480 are fewer."""
SMALL_BODY = 2**20
"""Bytes of a request for the lane of small images."""
NICE = 10
"""How far the workers for large images stand back behind the service itself when the processor is busy."""
ONE_SEND = 2**16
"""Bytes that are copied rather than sent by a call of their own."""
START_SECONDS = 60.0
COPIES = 4
"""How often a worker may hold the body and the result of a request, which are converted on their way."""
SPARE_MEMORY = 64 * 2**20
"""Bytes of a worker beyond these."""

_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from resitta.serve.decode_worker import main
main(sys.argv[2:])
"""
"""Imports the worker from where this package is; it takes no torch."""

Reply = tuple[int, int, bytearray]
Gone = Callable[[], Awaitable[bool]]


class Decoders:
    """The decoding of one service. Use it in an `async with` block.

    `decode` takes the content type and the body of a request and returns its images, N×3×size×size in [0, 1]; bodies
    that cannot be decoded within the limits are refused.
    """

    def __init__(self, limits: Limits, metrics: Metrics, size: int, resize: Resize) -> None:
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
        """Decode the body of a request; not if the client is gone when its turn comes."""
        if len(body) <= PLAIN_BODY and kind_of(kind) in RAW:
            loop = asyncio.get_running_loop()
            if (images := await loop.run_in_executor(self.threads, self._decode_plain, bytes(body))) is not None:
                return images
        status, count, found = ELSEWHERE, 0, bytearray()
        if len(body) <= SMALL_BODY:
            status, count, found = await self.small.ask(kind, body, client)
        if status == ELSEWHERE:
            status, count, found = await self.large.ask(kind, body, client, gone)
        if status not in (OK, FLOATS):
            raise Refused(status, found.decode())
        images = torch.frombuffer(found, dtype=torch.uint8 if status == OK else torch.float32)
        return images.view(count, 3, self.size, self.size)

    def _decode_plain(self, raw: bytes) -> Tensor | None:
        """Decode a file if it is plain and small, in a thread, which could not be stopped."""
        if not files.is_plain(raw):
            return None
        try:
            return torch.from_numpy(self.plain([raw]))
        except TooMuchWork:
            return None


class Lane:
    """Some workers with the same job; each client has at most `share` requests in their queue."""

    def __init__(self, job: Job, metrics: Metrics, *, share: int) -> None:
        self.job = job
        self.metrics = metrics
        self.share = share
        self._workers: set[Worker] = set()
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all workers and wait until they are ready."""
        await asyncio.gather(*(self._add() for _ in range(WORKERS)))

    async def close(self) -> None:
        """Kill all workers."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in self._workers))

    async def ask(self, kind: str, body: bytearray, client: str, gone: Gone | None = None) -> Reply:
        """Have a worker decode a body, when it is the client's turn."""
        if (turns := self._shares.get(client)) is None:
            self._shares[client] = turns = asyncio.Semaphore(self.share)
        async with turns:
            while not (worker := await self._idle.get()).running:
                self._release(worker)
            try:
                if gone is not None and await gone():
                    raise Refused(499, "the client has gone before its images were decoded", close=True)
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
        """Start another worker, however long it takes: nothing is decoded without."""
        while True:
            with suppress(WorkerLost, OSError, TimeoutError):
                return await self._add()
            await asyncio.sleep(1)

    async def _add(self) -> None:
        worker = Worker(self.job)
        self._workers.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._workers.discard(worker)
            raise
        self._idle.put_nowait(worker)


class Worker:
    """One process and the socket to it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._killed = False

    async def start(self) -> None:
        """Start the process and wait until it has imported what it needs."""
        self._process, self._socket = await asyncio.to_thread(self._spawn)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._reply()
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether it is there to decode."""
        return self._process is not None and self._process.poll() is None and not self._killed

    def _spawn(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        """Run the worker's file with nothing of this process but a socket, at whose end the worker ends as well."""
        ours, other = socket.socketpair()
        with other:
            arguments = [str(Path(__file__).parents[2]), str(other.fileno()), json.dumps(asdict(self.job))]
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,  # Ctrl-C in a terminal is for the service, which ends its workers itself
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        ours.setblocking(False)
        return process, ours

    async def ask(self, kind: str, body: bytearray) -> Reply:
        """Have it decode a body; given up, it is killed, since it cannot be told to stop."""
        assert self._socket is not None
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
        assert self._socket is not None
        loop, found = asyncio.get_running_loop(), bytearray(size)
        view = memoryview(found)
        while view:
            count = await loop.sock_recv_into(self._socket, view)
            if not count:
                raise ConnectionResetError("the worker has ended")
            view = view[count:]
        return found

    async def _reason(self) -> str:
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait)
        if code == -signal.SIGPROF:
            return f"they took more than {self.job.seconds:g} s of processor time"
        return f"the decoder ended with status {code}"

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._killed = True
        if self._process is not None:
            self._process.kill()
        if self._socket is not None:
            self._socket.close()

    async def wait(self) -> None:
        """Let the system forget the process."""
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
