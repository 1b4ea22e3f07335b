"""Ask a service about pictures, and use its controls.

python examples/clients/predict.py photo.jpg other.png
RESITTA_TOKEN=... python examples/clients/predict.py --control pause
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

KINDS = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}


def post(url: str, body: bytes, headers: dict[str, str]) -> Any:
    """Send a request; a refusal ends the program with the service's sentence."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        sys.exit(json.load(refusal)["error"])
    except OSError as error:
        sys.exit(f"no service at {url} ({error}); start one with: resitta serve demo")


def main() -> None:
    """Print one line per picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--control", choices=("pause", "resume", "reset", "snapshot", "rollback"))
    args = parser.parse_args()
    if args.control:
        token = os.environ.get("RESITTA_TOKEN", "")
        print(post(f"{args.url}/{args.control}", b"", {"Authorization": f"Bearer {token}"}))
    for path in args.pictures:
        kind = KINDS.get(path.suffix.lower(), "application/octet-stream")
        answer = post(f"{args.url}/predict", path.read_bytes(), {"Content-Type": kind})
        best = answer["predictions"][0]
        sure = f"{best['confidence']:.0%}, {best['entropy']:.2f} nats"
        print(f"{path}: {best['name']} ({sure}), version {answer['version']}")


if __name__ == "__main__":
    main()
