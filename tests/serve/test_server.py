"""A service in a process of its own: stopped, killed, started again."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from tests.serve.helpers import TOKEN, grey16, picture, until

import resitta
from resitta.errors import BadSetting
from resitta.models import create
from resitta.serve import server as running
from resitta.serve.server import listen
from resitta.serve.storage import StateFolder

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, 5)).eval()
"""


class Process:
    def __init__(self, folder: Path, port: int, *options: str) -> None:
        (folder / "model.py").write_text(MODEL)
        command = [sys.executable, "-m", "resitta.cli", "serve", f"{folder / 'model.py'}:make", "--size", "10"]
        command += ["--state", str(folder / "state"), "--port", str(port), "--save-every", "0.1", "--threads", "1"]
        command += ["--set", "update_every=16", "--learn-batch", "4", "--no-guard", *options]
        environment = os.environ | {"RESITTA_TOKEN": TOKEN}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        begin = time.monotonic()
        until(self.ready, 60)
        self.seconds_to_start = time.monotonic() - begin

    def ready(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None
            return False

    def learn(self, count: int) -> None:
        before = self.client.get("/stats").json()["adapter"]["samples"]
        for seed in range(count):
            self.client.post("/predict", content=picture(seed=seed), headers={"Content-Type": "image/png"})
        until(lambda: self.client.get("/stats").json()["adapter"]["samples"] == before + count)

    def stop(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    processes: list[Process] = []

    def start(*options: str) -> Process:
        processes.append(Process(tmp_path, port, *options))
        return processes[-1]

    yield start
    for process in processes:
        process.process.kill()
        process.process.communicate()
        process.client.close()


@pytest.mark.slow
def test_kill_loses_only_what_came_after_the_last_snapshot_and_sigterm_nothing(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    first = start()
    first.learn(40)
    until(lambda: first.client.get("/stats").json()["snapshots"][-1:] == [2])
    first.stop(signal.SIGKILL)
    with pytest.raises(httpx.ConnectError):
        first.client.get("/ready")

    second = start()
    stats = second.client.get("/stats").json()
    assert stats["version"] == 2
    assert 32 <= stats["adapter"]["samples"] <= 40
    second.learn(20)
    assert second.stop(signal.SIGTERM) == 0
    assert second.process.stdout is not None
    printed = second.process.stdout.read()
    assert "resitta serves at http://127.0.0.1" in printed
    assert TOKEN not in printed

    adapter = resitta.adapt(create(f"{tmp_path / 'model.py'}:make"), "resitta", update_every=16, anchor=0.1)
    folder = StateFolder(tmp_path / "state", keep=10)
    assert folder.versions()[-1] == 3
    assert folder.recover(adapter) == {}
    assert adapter.samples == stats["adapter"]["samples"] + 20


@pytest.mark.slow
def test_kill_loses_of_each_stream_only_what_came_after_its_last_save(start: Callable[..., Process]) -> None:
    def send(process: Process, stream: str, count: int) -> None:
        headers = {"Content-Type": "image/png", "X-Stream": stream, "Authorization": f"Bearer {TOKEN}"}
        for seed in range(count):
            assert process.client.post("/predict", content=picture(seed=seed), headers=headers).status_code == 200

    def samples(process: Process) -> dict[str, int]:
        return {row["name"]: row["samples"] for row in process.client.get("/streams").json()["streams"]}

    first, sent = start("--fleet", "--max-streams", "2"), {"a": 20, "b": 5, "c": 9}
    for name, count in sent.items():
        send(first, name, count)
    until(lambda: samples(first) == sent)
    assert first.client.post("/snapshot", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    send(first, "b", 3)
    first.stop(signal.SIGKILL)

    second = start("--fleet", "--max-streams", "3")
    assert set(samples(second)) == set(sent)
    for name in sent:
        send(second, name, 1)
    until(lambda: second.client.get("/stats").json()["learned"] == 3)
    found = samples(second)
    assert (found["a"], found["c"]) == (21, 10)
    assert 6 <= found["b"] <= 9
    assert second.stop(signal.SIGTERM) == 0
    assert second.process.stdout is not None
    assert "state, 3 streams" in second.process.stdout.read()
    third = start("--fleet")
    send(third, "b", 1)
    until(lambda: samples(third)["b"] == found["b"] + 1)


@pytest.mark.slow
def test_ctrl_c_keeps_the_state_and_says_how_to_go_on(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start()
    process.learn(20)
    assert process.stop(signal.SIGINT) == 130
    assert process.process.stderr is not None
    assert process.process.stderr.read() == (
        "resitta: interrupted; with --state, repeat the command to continue from the saved state\n"
    )
    assert start().client.get("/stats").json()["adapter"]["samples"] == 20


def decode_for_long(process: Process) -> list[httpx.Response]:
    """Have it decode for a minute; the answer will be in the list, if there is one."""
    files = [("images", (f"{number}.png", grey16(8000, 5000))) for number in range(64)]
    answers: list[httpx.Response] = []

    def send() -> None:
        with suppress(httpx.TransportError):
            answers.append(httpx.post(f"{process.client.base_url}/predict", files=files, timeout=60))

    threading.Thread(target=send, daemon=True).start()
    time.sleep(1)
    return answers


@pytest.mark.slow
def test_sigterm_ends_the_process_whatever_is_decoded(start: Callable[..., Process]) -> None:
    process = start("--max-pixels", "10_000_000_000")
    answers = decode_for_long(process)
    begin = time.monotonic()
    assert process.stop(signal.SIGTERM) == 0
    assert time.monotonic() - begin < max(5, process.seconds_to_start), "5 s, unless the machine is busy"
    until(lambda: answers)
    assert answers[0].status_code == 503
    assert "stopping" in answers[0].json()["error"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_the_process_that_started_them(start: Callable[..., Process]) -> None:
    process = start("--max-pixels", "10_000_000_000")
    decode_for_long(process)
    workers = children(process.process.pid)
    assert len(workers) == 4
    process.stop(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_a_service_on_this_machine_answers_to_its_own_names(start: Callable[..., Process]) -> None:
    process = start()
    assert process.client.get("/ready", headers={"Host": "localhost"}).status_code == 200
    refused = process.client.get("/ready", headers={"Host": "elsewhere.example"})
    assert refused.status_code == 421
    assert "found 'elsewhere.example'; --allow-host adds a name" in refused.json()["error"]
    assert 'resitta_refused_total{status="421"} 1.0' in process.client.get("/metrics").text


@pytest.mark.slow
def test_a_second_service_on_the_same_state_is_refused_until_the_first_is_gone(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    first = start()
    command = [sys.executable, "-m", "resitta.cli", "serve", f"{tmp_path / 'model.py'}:make", "--size", "10"]
    second = subprocess.run(
        [*command, "--state", str(tmp_path / "state"), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert "keeps its state in" in second.stderr
    assert "Traceback" not in second.stderr
    assert first.ready()
    first.stop(signal.SIGKILL)  # leaves the file, but not its lock
    assert start().ready()


def test_a_port_in_use_is_refused_with_a_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(BadSetting, match="choose another"):
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(BadSetting, match="choose another"):
        listen("127.0.0.1", 99_999)


def test_collecting_garbage_does_not_look_through_what_was_there_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    class Server:
        def run(self, sockets: list[socket.socket]) -> None:
            frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(running, "make_server", lambda _: Server())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    gc.unfreeze()  # what conftest has frozen; the server freezes it again
    with listen("127.0.0.1", 0) as on:
        running.run(FastAPI(), on)
    assert frozen[0] > 10_000


def test_small_answers_are_sent_without_delay(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        client.get("/health")
        start = time.monotonic()
        for _ in range(20):
            client.get("/health")
        assert time.monotonic() - start < 20 * 0.038  # what a delayed acknowledgement would cost
