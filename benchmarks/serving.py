"""What the service holds under load, measured on loopback: latency with and without adaptation, memory, kill -9.

    python benchmarks/serving.py

Starts `resitta serve demo` in a process of its own, as it comes and once without its guard, sends PNG images of
corrupted digits from concurrent clients, each waiting for its answer, and writes a record. Blocks with and without
adaptation alternate, so that both see the same machine. Every image must be accounted for: by the clients, by /stats
and by the memory of samples in the last snapshot.
"""

import argparse
import asyncio
import contextlib
import io
import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo_networks import corrupted_stream
from PIL import Image

import resitta
from resitta.demo.digits import cached_network, load_digits
from resitta.serve.storage import StateFolder

TOKEN = "a token for measuring only"
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RECORD = Path(__file__).parent / "records" / "serving.json"


def main() -> None:
    """Run both experiments, print what they found and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="with adaptation; as many without")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float, default=240, help="requests per second of clients like cameras")
    parser.add_argument("--block", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args()
    pictures = png_stream(2_000)
    record = {
        "machine": {
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "load": under_load(pictures, args.requests, args.clients, args.block, math.inf),
        "load_no_guard": under_load(pictures, args.requests, args.clients, args.block, math.inf, "--no-guard"),
        "cameras": under_load(pictures, args.requests, args.clients, args.block, args.rate),
        "kill": under_kill(pictures, args.clients),
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=2))


def png_stream(count: int) -> list[bytes]:
    """The demo's temporally correlated stream of corrupted digits, each as a PNG file."""
    stream = corrupted_stream(load_digits(), -(-count // 15), 1)
    images, _ = stream.read(stream.domain[:count], stream.index[:count])
    return [encode(picture) for picture in images.permute(0, 2, 3, 1).numpy()]


def encode(picture: "np.typing.NDArray[np.uint8]") -> bytes:
    """One picture as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


class Server:
    """`resitta serve demo` in a process of its own."""

    def __init__(self, state: Path, port: int, *options: str) -> None:
        command = [sys.executable, "-m", "resitta.cli", "serve", "demo", "--state", str(state), "--port", str(port)]
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        environment = os.environ | {"RESITTA_TOKEN": TOKEN}
        self.process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL)
        started = time.monotonic()
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > started + 120:
                raise SystemExit("the service did not start")
            time.sleep(0.05)
        self.seconds_to_start = time.monotonic() - started

    def ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(OSError):
            return bool(self.get("/ready"))
        return False

    def get(self, path: str) -> Any:
        """Read JSON from a path."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """Read text from a path."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return bytes(answer.read()).decode()

    def post(self, path: str) -> Any:
        """Use a control."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, b"", headers), timeout=30) as answer:
            return json.load(answer)

    def settled(self) -> dict[str, Any]:
        """The statistics, once everything waiting has been learned."""
        while (stats := self.get("/stats"))["waiting"] or stats["adapter"]["samples"] != stats["learned"]:
            time.sleep(0.1)
        return dict(stats)

    def memory_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


@dataclass
class Tally:
    """What clients saw."""

    latencies: list[float] = field(default_factory=list)
    learned: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    versions: list[int] = field(default_factory=list)

    def milliseconds(self, quantile: float) -> float:
        """A quantile of the latencies."""
        return round(float(np.quantile(self.latencies, quantile)) * 1000, 2)


async def ask(port: int, picture: bytes, tally: Tally, pipe: Pipe | None) -> Pipe | None:
    """Send one image over a kept connection, or a new one, and note what came back; None if the connection is gone."""
    start = time.perf_counter()
    try:
        reader, writer = pipe or await asyncio.open_connection("127.0.0.1", port)
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        writer.write(f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
    except ConnectionRefusedError:
        tally.outcomes["refused"] += 1
        return None
    except (OSError, asyncio.IncompleteReadError):
        tally.outcomes["cut off"] += 1
        return None
    tally.outcomes[answer.split()[1].decode()] += 1
    tally.latencies.append(time.perf_counter() - start)
    tally.learned += body.get("learned", 0)
    tally.versions.append(body.get("version", -1))
    return reader, writer


async def clients(port: int, pictures: list[bytes], count: int, many: int, *, rate: float = math.inf) -> Tally:
    """Send images from concurrent clients, each waiting for its answer before it sends the next.

    `rate`: requests per second of all clients together, as of cameras; without one, as many as get answered.
    """
    tally, numbers, start = Tally(), iter(range(count)), time.perf_counter()

    async def client() -> None:
        pipe: Pipe | None = None
        for number in numbers:
            await asyncio.sleep(start + number / rate - time.perf_counter())
            while (pipe := await ask(port, pictures[number % len(pictures)], tally, pipe)) is None:
                await asyncio.sleep(0.1)  # the service is gone: try again until it is back
        if pipe:
            pipe[1].close()

    await asyncio.gather(*(client() for _ in range(many)))
    return tally


def under_load(
    pictures: list[bytes], requests: int, many: int, block: int, rate: float, *options: str
) -> dict[str, Any]:
    """Alternate blocks with and without adaptation and account for every image."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), free_port(), *options)
        warm = asyncio.run(clients(server.port, pictures, 500, many))
        server.settled()
        memory = [server.memory_mb()]
        adapting, paused = Tally(), Tally()
        pairs: list[float] = []
        for number in range(-(-requests // block)):
            offset = number * block % len(pictures)
            order = pictures[offset:] + pictures[:offset]
            medians = {}
            for control, tally in (("/resume", adapting), ("/pause", paused))[:: 1 if number % 2 else -1]:
                server.post(control)
                found = asyncio.run(clients(server.port, order, block, many, rate=rate))
                medians[control] = found.milliseconds(0.5)
                tally.latencies += found.latencies
                tally.learned += found.learned
                tally.outcomes += found.outcomes
                if control == "/resume":
                    server.settled()
            memory.append(server.memory_mb())
            pairs.append(round(medians["/resume"] / medians["/pause"], 3))
            print(f"block {number + 1}: p50 {adapting.milliseconds(0.5)} / {paused.milliseconds(0.5)} ms", flush=True)
        stats = server.settled()
        status = server.stop()
        clock, samples = bank_clock(Path(folder))
    ratio = adapting.milliseconds(0.5) / paused.milliseconds(0.5)
    return {
        "clients": many,
        "requests_per_second": "as many as get answered" if rate == math.inf else rate,
        "with_adaptation": summary(adapting),
        "without_adaptation": summary(paused),
        "p50_ratio": round(ratio, 3),
        "p50_ratio_of_each_pair_of_blocks": pairs,
        "learned": {
            "answers_say": adapting.learned + warm.learned,
            "stats_say": stats["learned"],
            "adapter_says": samples,
            "bank_clock": clock,
        },
        "dropped": stats["dropped"],
        "updates": stats["adapter"]["updates"],
        "memory_mb": [round(value, 1) for value in memory],
        "exit_status_after_sigterm": status,
    }


def summary(tally: Tally) -> dict[str, Any]:
    """The outcomes and quantiles of a tally."""
    quantiles = {f"p{q}_ms": tally.milliseconds(q / 100) for q in (50, 90, 99)}
    return {"outcomes": dict(tally.outcomes), **quantiles}


def bank_clock(folder: Path) -> tuple[int, int]:
    """How many samples the bank of the last snapshot has seen, and the adapter."""
    network = cached_network()
    assert network is not None  # the service has just used it
    adapter = resitta.load(network, max(folder.glob("state-*.safetensors")))
    memory = adapter.learner.memory()
    return (memory.clock if memory else 0), adapter.samples


def under_kill(pictures: list[bytes], many: int) -> dict[str, Any]:
    """Kill the service while clients are at work, start it anew, and see where it goes on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Server(folder, free_port(), "--save-every", "1")

        async def kill_and_restart() -> dict[str, Any]:
            load = asyncio.create_task(clients(server.port, pictures, 4_000, many))
            while len(StateFolder(folder, keep=10).versions()) < 3:
                await asyncio.sleep(0.1)
            server.stop(signal.SIGKILL)
            saved = StateFolder(folder, keep=10).versions()[-1]
            _, samples = bank_clock(folder)
            again = await asyncio.to_thread(Server, folder, server.port, "--save-every", "1")
            first = await asyncio.to_thread(again.get, "/stats")
            tally = await load
            status = again.stop()
            return {
                "outcomes": dict(tally.outcomes),
                "last_snapshot": {"version": saved, "samples": samples},
                "after_restart": {"version": first["version"], "samples": first["adapter"]["samples"]},
                "last_version": tally.versions[-1],
                "seconds_to_ready": round(again.seconds_to_start, 1),
                "exit_status_after_sigterm": status,
            }

        return asyncio.run(kill_and_restart())


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
