"""Use an installed wheel as a newcomer does: demo, check, bench with a method of one's own, report, serve."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MODEL = """
import torch
from resitta.conformance import tiny_network

def make(classes=4):
    torch.manual_seed(0)
    return tiny_network(classes=classes)
"""
DATA = (
    "py.typed",
    "report/page.html",
    "report/page.css",
    "report/page.js",
    "serve/page/index.html",
    "demo/photographs/cat.webp",
    "demo/photographs/cifar10-wrn16x1.safetensors",
)


def resitta(*arguments: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(["resitta", *arguments], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != code:
        raise SystemExit(f"resitta {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(words: str, text: str) -> None:
    """End with an error unless a text holds the words."""
    if words not in text:
        raise SystemExit(f"{words!r} is not in:\n{text}")


def install_what_is_missing() -> None:
    """Follow the messages about missing extras: the commands they name must work."""
    for arguments in (("demo", "--fast"), ("serve", "demo")):
        message = resitta(*arguments, code=2)
        command = re.search(r"run: (pip install .*)$", message)
        if command is None:
            raise SystemExit(f"no command in: {message}")
        subprocess.run(f"{command.group(1)} -q", shell=True, check=True, timeout=600)


def package_is_whole() -> None:
    """The package is the installed one, with its data."""
    import resitta as package  # noqa: PLC0415

    expect("site-packages", str(package.__file__))
    for name in DATA:
        if not (files("resitta") / name).is_file():
            raise SystemExit(f"the wheel lacks {name}")


def demo() -> None:
    """Both demos end in a table and a page; that of the photographs shows a label prior."""
    expect("ResiTTA", resitta("demo", "--fast"))
    expect("The label prior at work", Path("resitta-demo/index.html").read_text("utf-8"))
    expect("ResiTTA", resitta("demo", "digits", "--fast", "--methods", "source", "resitta", "--out", "digits"))


def make_images() -> None:
    """Four classes of small pictures, each in a colour of its own."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    rng = np.random.default_rng(0)
    for label in range(4):
        folder = Path("photos") / str(label)
        folder.mkdir(parents=True)
        for number in range(40):
            pixels = rng.integers(0, 128, (32, 32, 3)) + 32 * np.array([label, 3 - label, 1])
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def bench_and_report() -> None:
    """Compare a method of one's own with others, and print the table."""
    make_images()
    Path("model.py").write_text(MODEL, encoding="utf-8")
    methods = ("source", "own_method.py:slow-bn", "resitta")
    chosen = ("--corruptions", "fog", "contrast", "--methods", *methods, "--size", "32", "--out", "runs")
    resitta("bench", "model.py:make", "photos", *chosen)
    table = resitta("report", "runs").lower()
    for name in ("source", "slow-bn", "resitta"):
        expect(name, table)
    expect("index.html", resitta("report", "runs", "--format", "html"))


def serve() -> None:
    """Start a service, send it a picture, stop it."""
    command = ["resitta", "serve", "demo", "--port", "0", "--state", "state"]
    with Path("serve.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", Path("serve.log").read_text()), server).group()
        until(lambda: answer(f"{url}/ready"), server)
        expect("<html", answer(f"{url}/").lower())
        picture = next(Path("photos").rglob("*.png")).read_bytes()
        expect("label", answer(f"{url}/predict", picture))
        server.send_signal(signal.SIGTERM)
        if server.wait(30) != 0:
            raise SystemExit(f"the service ended with {server.returncode}:\n{Path('serve.log').read_text()}")
    finally:
        server.kill()


def answer(url: str, picture: bytes | None = None) -> str:
    """Ask a service; an empty answer while it is not there."""
    request = urllib.request.Request(url, data=picture, headers={"Content-Type": "image/png"})
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def until(look: Callable[[], T | None], server: "subprocess.Popen[bytes]") -> T:
    """Wait until something is there, at most two minutes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        if found := look():
            return found
        time.sleep(0.2)
    raise SystemExit(f"the service did not answer:\n{Path('serve.log').read_text()}")


def main() -> None:
    """Run everything, and say how long each part took."""
    parts: tuple[Callable[[], object], ...] = (
        install_what_is_missing,
        package_is_whole,
        demo,
        lambda: expect("0 failed", resitta("check", "resitta")),
        lambda: expect("0 failed", resitta("check", "own_method.py:slow-bn")),
        bench_and_report,
        serve,
    )
    for name, part in zip(
        ("install", "data", "demo", "check", "own check", "bench, report", "serve"), parts, strict=True
    ):
        start = time.monotonic()
        part()
        sys.stdout.write(f"wheel: {name} passed in {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main()
