"""Send the frames of a video to a service, a few per request, as fast as the video would show them.

    python examples/clients/video.py street.mp4 --fps 5

Animated WebP and GIF files are read with Pillow, everything else with the program ffmpeg.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

Frame = NDArray[np.uint8]


def frames(path: Path, fps: float, side: int) -> Iterator[Frame]:
    """The frames of a file, each as side×side pixels."""
    if path.suffix.lower() in (".webp", ".gif"):
        with Image.open(path) as animation:
            for frame in ImageSequence.Iterator(animation):
                yield np.array(frame.convert("RGB").resize((side, side)))
        return
    if shutil.which("ffmpeg") is None:
        sys.exit(f"{path} needs the program ffmpeg; install it, or convert the video to an animated WebP")
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-vf", f"fps={fps},scale={side}:{side}"]
    raw = subprocess.Popen([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], stdout=subprocess.PIPE)
    assert raw.stdout is not None  # it is a pipe
    while len(pixels := raw.stdout.read(side * side * 3)) == side * side * 3:
        yield np.frombuffer(pixels, np.uint8).reshape(side, side, 3)


def ask(url: str, batch: list[Frame]) -> list[str]:
    """Predict some frames in one request; a refusal ends the program with the service's sentence."""
    body = io.BytesIO()
    np.save(body, np.stack(batch))
    request = urllib.request.Request(f"{url}/predict", body.getvalue(), {"Content-Type": "application/x-npy"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [f"{one['name']} ({one['confidence']:.0%})" for one in json.load(answer)["predictions"]]
    except urllib.error.HTTPError as refusal:
        sys.exit(json.load(refusal)["error"])


def main() -> None:
    """Print a line per frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--fps", type=float, default=10)
    parser.add_argument("--batch", type=int, default=8, help="frames per request")
    args = parser.parse_args()
    with urllib.request.urlopen(f"{args.url}/stats") as answer:
        side = json.load(answer)["size"]
    start, shown, film = time.monotonic(), 0, frames(args.video, args.fps, side)
    while batch := list(islice(film, args.batch)):
        for text in ask(args.url, batch):
            print(f"frame {shown}: {text}", flush=True)
            shown += 1
        time.sleep(max(0.0, start + shown / args.fps - time.monotonic()))


if __name__ == "__main__":
    main()
