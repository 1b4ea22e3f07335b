"""What honest clients notice of hostile ones, measured on loopback: latency with and without them, in turns.

    python benchmarks/hostile.py

Starts `resitta serve demo` in a process of its own. Honest clients send PNG images of corrupted digits, each waiting
for its answer. In every second block a quarter of the clients is hostile: they do not read answers, send pictures of
thousands of scans or of 40 million pixels, half of a body, garbage, too much, black images and noise. Each client has
an address of its own in 127/8, so this needs Linux. Hostile clients run in another process than honest ones. Meanwhile
/health and /ready are asked ten times a second. Every honest request must be answered, and their p99 with hostile
clients should be at most twice that without.
"""

import argparse
import asyncio
import contextlib
import functools
import io
import json
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from serving import Pipe, Server, Tally, ask, encode, free_port, png_stream, summary

RECORD = Path(__file__).parent / "records" / "hostile.json"
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
LARGE = 8000, 5000
PATIENCE = 1.0
"""Seconds that a hostile client holds a connection that it does not use."""


def main() -> None:
    """Run the blocks, print what they found and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of all clients, in the blocks with hostile ones")
    parser.add_argument(
        "--clients", type=int, default=64, help="in these blocks; without the hostile ones in the others"
    )
    parser.add_argument("--hostile", type=float, default=0.25, help="the share of hostile clients")
    parser.add_argument("--block", type=int, default=1_000, help="honest requests of a block")
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args()
    hostile = round(args.clients * args.hostile)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), free_port())
        many = {"honest": args.clients - hostile, "hostile": hostile}
        found = in_turns(server, png_stream(2_000), requests=args.requests, block=args.block, **many)
        begin = time.monotonic()
        found["exit_status_after_sigterm"] = server.stop()
        found["seconds_to_stop"] = round(time.monotonic() - begin, 1)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    text = json.dumps({"machine": machine, **found}, indent=2)
    args.out.write_text(text + "\n", encoding="utf-8")
    print(text)


@dataclass
class Side:
    """What was seen in the blocks of one kind."""

    honest: Tally = field(default_factory=Tally)
    probes: Tally = field(default_factory=Tally)
    quantiles: list[tuple[float, float]] = field(default_factory=list)

    def add(self, honest: Tally, probes: Tally) -> None:
        """Add a block."""
        for mine, more in ((self.honest, honest), (self.probes, probes)):
            mine.latencies += more.latencies
            mine.outcomes += more.outcomes
        self.quantiles.append((honest.milliseconds(0.5), honest.milliseconds(0.99)))


def in_turns(
    server: Server, pictures: list[bytes], *, requests: int, honest: int, hostile: int, block: int
) -> dict[str, Any]:
    """Alternate blocks with and without hostile clients until all requests of the former are made."""
    asyncio.run(clients(server.port, pictures, min(500, block), honest))  # warm
    alone, attacked, attacks = Side(), Side(), Counter[str]()
    memory = [family_mb(server)]
    while attacked.honest.outcomes.total() + attacks.total() < requests:
        for side in (alone, attacked)[:: 1 if len(memory) % 2 else -1]:

            def send(side: Side = side) -> None:
                side.add(*asyncio.run(clients(server.port, pictures, block, honest)))

            if side is alone:
                send()
            else:
                attacks += under_attack(server.port, hostile, send)
        memory.append(family_mb(server))
        print(f"p50, p99 alone {alone.quantiles[-1]}, attacked {attacked.quantiles[-1]} ms", flush=True)
    return {
        "clients": {"honest": honest, "hostile": hostile},
        "requests_while_attacked": {"honest": attacked.honest.outcomes.total(), "hostile": attacks.total()},
        "alone": summary(alone.honest),
        "attacked": summary(attacked.honest),
        "p50_ratio": ratio(attacked, alone, 0.5),
        "p99_ratio": ratio(attacked, alone, 0.99),
        "p50_and_p99_of_each_block": {"alone": alone.quantiles, "attacked": attacked.quantiles},
        "health_and_ready": {"alone": summary(alone.probes), "attacked": summary(attacked.probes)},
        "attacks": dict(sorted(attacks.items())),
        "memory_mb_with_workers": memory,
        "refused": metric(server, "resitta_refused_total"),
        "connections_cut": metric(server, "resitta_connections_cut_total"),
        "decoders_killed": metric(server, "resitta_decoders_killed_total"),
    }


def ratio(attacked: Side, alone: Side, quantile: float) -> float:
    """How much slower honest clients are answered under attack."""
    return round(attacked.honest.milliseconds(quantile) / alone.honest.milliseconds(quantile), 3)


def under_attack(port: int, hostile: int, honest: Callable[[], None]) -> "Counter[str]":
    """Let honest clients do a block beside hostile ones in another process; returns what became of the attacks."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=attack, args=(port, hostile, there), daemon=True)
    process.start()
    try:
        here.recv()  # at work
        honest()
        here.send("stop")
        found: Counter[str] = here.recv()
        process.join(30)
        return found
    finally:
        process.kill()


async def clients(port: int, pictures: list[bytes], count: int, many: int) -> tuple[Tally, Tally]:
    """Send images from concurrent honest clients, and ask for health beside them."""
    tally, probes, numbers = Tally(), Tally(), iter(range(count))

    async def client(address: str) -> None:
        pipe: Pipe | None = None
        for number in numbers:
            while (
                pipe := await ask(port, pictures[number % len(pictures)], tally, pipe or await dial(port, address))
            ) is None:
                await asyncio.sleep(0.1)
        if pipe:
            pipe[1].close()

    probing = asyncio.create_task(probe(port, probes))
    await asyncio.gather(*(client(f"127.0.1.{number + 1}") for number in range(many)))
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    return tally, probes


async def dial(port: int, address: str) -> Pipe:
    """Connect as the client of an address."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def probe(port: int, tally: Tally) -> None:
    """Ask for /health and /ready as an orchestrator does, each time over a new connection."""
    while True:
        for path in ("health", "ready"):
            start = time.perf_counter()
            reader, writer = await dial(port, "127.0.0.9")
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            tally.outcomes[status(await reader.read())] += 1
            tally.latencies.append(time.perf_counter() - start)
            writer.close()
        await asyncio.sleep(0.1)


def attack(port: int, many: int, parent: Connection) -> None:
    """Attack until told to stop, then say what became of each attempt. Runs in a process of its own."""
    outcomes: Counter[str] = Counter()
    for make in (scan_bomb, pixel_bomb, black):
        make()  # before anything is measured

    async def run() -> None:
        tasks = [asyncio.create_task(attacker(port, number, outcomes)) for number in range(many)]
        parent.send("at work")
        await asyncio.to_thread(parent.recv)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    parent.send(outcomes)


async def attacker(port: int, number: int, outcomes: "Counter[str]") -> None:
    """One hostile client: the same attack again and again, each time over a new connection."""
    chance, kind = random.Random(number), list(ATTACKS)[number % len(ATTACKS)]
    while True:
        writer = None
        try:
            reader, writer = await dial(port, f"127.0.2.{number + 1}")
            outcome = await ATTACKS[kind](reader, writer, chance)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            outcome = type(error).__name__
        finally:
            if writer is not None:
                writer.transport.abort()
        outcomes[f"{kind}: {outcome}"] += 1


Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter, random.Random], Awaitable[str]]


async def slow_reader(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: random.Random) -> str:
    """Ask for much and never read."""
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    await asyncio.sleep(PATIENCE)
    return "held"


async def half_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: random.Random) -> str:
    """Send half of a body and wait."""
    writer.write(HEAD + b"Content-Length: 10000\r\n\r\n" + bytes(5_000))
    with contextlib.suppress(TimeoutError):
        return status(await asyncio.wait_for(reader.read(100), PATIENCE))
    return "left"


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> str:
    """Send bytes that mean nothing, as a picture or as a request."""
    noise = chance.randbytes(2_000)
    picture = HEAD + b"Content-Length: 2000\r\n\r\n" + noise
    return await answer(reader, writer, picture if chance.random() < 0.5 else noise + b"\r\n\r\n")


async def oversize(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: random.Random) -> str:
    """Announce more than a request may have, and begin to send it."""
    return await answer(reader, writer, HEAD + b"Content-Length: 100000000\r\n\r\n" + bytes(1_000_000))


def sent(make: Callable[[random.Random], bytes]) -> Attack:
    """Send a picture and read the answer."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> str:
        picture = make(chance)
        return await answer(reader, writer, HEAD + f"Content-Length: {len(picture)}\r\n\r\n".encode() + picture)

    return send


@functools.cache
def scan_bomb() -> bytes:
    """A progressive JPEG of 44 KB: 40 million pixels, and 4,000 scans over all of them."""
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "JPEG", progressive=True)
    raw = file.getvalue()
    size = raw.index(b"\xff\xc2") + 5
    raw = raw[:size] + LARGE[1].to_bytes(2) + LARGE[0].to_bytes(2) + raw[size + 4 :]
    return raw[:-2] + raw[raw.rindex(b"\xff\xda") : -2] * 4_000 + raw[-2:]


@functools.cache
def pixel_bomb() -> bytes:
    """A PNG of 80 KB: 40 million pixels of 16 bits."""
    file = io.BytesIO()
    Image.fromarray(np.zeros(LARGE[::-1], np.uint16)).save(file, "PNG")
    return file.getvalue()


@functools.cache
def black() -> bytes:
    """An image that shows nothing."""
    return encode(np.zeros((32, 32, 3), np.uint8))


def noise(chance: random.Random) -> bytes:
    """An image that looks like nothing known."""
    return encode(np.frombuffer(chance.randbytes(32 * 32 * 3), np.uint8).reshape(32, 32, 3))


ATTACKS: dict[str, Attack] = {
    "slow reader": slow_reader,
    "half a body": half_body,
    "garbage": garbage,
    "oversize": oversize,
    "scan bomb": sent(lambda _: scan_bomb()),
    "pixel bomb": sent(lambda _: pixel_bomb()),
    "black": sent(lambda _: black()),
    "noise": sent(noise),
}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
    """Send a request and read the status of its answer."""
    writer.write(request)
    return status(await reader.read(100))


def status(found: bytes) -> str:
    """The status of an answer, or what is there in its place."""
    words = found.split(b" ", 2)
    return words[1].decode("ascii", "replace") if len(words) > 1 else "nothing"


def family_mb(server: Server) -> float:
    """Resident memory of the service and of its worker processes, pages that they share counted in each."""
    total = server.memory_mb()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == server.process.pid:
                total += int((stat.parent / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    return round(total, 1)


def metric(server: Server, name: str) -> dict[str, float]:
    """The values of a metric by its labels."""
    lines = server.text("/metrics").splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(name))
    return {labels.removeprefix(name) or "all": float(value) for labels, _, value in found}


if __name__ == "__main__":
    main()
