"""Watch a folder as a camera fills it: ask a service about every new picture, in the order they come.

python examples/clients/watch_folder.py pictures/
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}


def new_pictures(folder: Path, *, every: float) -> Iterator[Path | None]:
    """Pictures that were not there before, oldest first; None whenever there was nothing new for `every` seconds."""
    seen: dict[Path, tuple[int, int]] = {}
    while True:
        found = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir() if p.suffix.lower() in ENDINGS}
        # A camera may still be writing: a picture counts once it has kept its size since the last look.
        ready = [path for path, state in found.items() if seen.get(path) == state]
        yield from sorted(ready, key=lambda path: found[path])
        seen = found | dict.fromkeys((*ready, *(p for p in found if seen.get(p) == (-1, -1))), (-1, -1))
        yield None
        time.sleep(every)


def ask(url: str, path: Path) -> str:
    """One line about a picture."""
    headers = {"Content-Type": "application/octet-stream"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/predict", path.read_bytes(), headers)) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as refusal:
        return f"refused: {json.load(refusal)['error']}"
    best = found["predictions"][0]
    return f"{best['name']} ({best['confidence']:.0%}), version {found['version']}"


def main() -> None:
    """Print a line per picture until interrupted, or until nothing new came for a while."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two looks")
    parser.add_argument("--patience", type=float, default=float("inf"), help="end after so many seconds without news")
    args = parser.parse_args()
    last = time.monotonic()
    for path in new_pictures(args.folder, every=args.every):
        if path is not None:
            print(f"{path.name}: {ask(args.url, path)}", flush=True)
            last = time.monotonic()
        elif time.monotonic() - last > args.patience:
            sys.exit(0)


if __name__ == "__main__":
    main()
