"""Send the frames of a video or camera to a service, a few per request, as fast as the video would show them.

pip install "resitta[video]"
python examples/clients/video.py street.mp4 --every 5
python examples/clients/video.py 0 --batch 1    # the first camera
"""

import argparse
import io
import json
import sys
import time
import urllib.error
import urllib.request

import numpy as np
from torch import Tensor

import resitta


def ask(url: str, images: Tensor) -> list[str]:
    """Predict some frames in one request; a refusal ends the program with the service's sentence."""
    body = io.BytesIO()
    np.save(body, (images * 255).round().byte().permute(0, 2, 3, 1).numpy())  # a quarter of the bytes of floats
    request = urllib.request.Request(f"{url}/predict", body.getvalue(), {"Content-Type": "application/x-npy"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [f"{one['name']} ({one['confidence']:.0%})" for one in json.load(answer)["predictions"]]
    except urllib.error.HTTPError as refusal:
        sys.exit(json.load(refusal)["error"])


def main() -> None:
    """Print a line per frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", help="a file, a URL, or the number of a camera")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--every", type=int, default=1, help="send one frame in so many")
    parser.add_argument("--batch", type=int, default=8, help="frames per request")
    args = parser.parse_args()
    with urllib.request.urlopen(f"{args.url}/stats") as answer:
        side = json.load(answer)["size"]
    source = int(args.video) if args.video.isdecimal() else args.video
    start, shown = time.monotonic(), 0
    with resitta.video(source, size=side, batch=args.batch, every=args.every) as film:
        for images in film:
            for text in ask(args.url, images):
                print(f"frame {shown * args.every}: {text}", flush=True)
                shown += 1
            if film.fps and not isinstance(source, int):  # a camera keeps its own time
                time.sleep(max(0.0, start + shown * args.every / film.fps - time.monotonic()))


if __name__ == "__main__":
    main()
