"""Compare our corruptions with the package `imagecorruptions`: speed on one core, and likeness.

    pip install imagecorruptions
    python benchmarks/corruptions.py --images PATH_TO_FOLDER_OR_ZIP

Prints one line per corruption and writes a record. Random draws differ between the two packages, so the distance
between ours and theirs is to be read beside the distance between two runs of theirs. Ours follow the scripts that
made the public sets; theirs differ from these on purpose in elastic_transform (no affine map), frost (texture
enlarged by a tenth), motion_blur (rounded down), zoom_blur and snow (zoom not centred).
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import io
import json
import platform
import sys
import time
import types
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resitta.data.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_texture_source
from resitta.errors import BadData, MissingExtra, require

HERE = Path(__file__).parent
BEDS = HERE.parent / "../shared/beds/imagenet-val-2k.zip"
PACKAGES = ("imagecorruptions", "numpy", "opencv-python", "pillow", "scikit-image", "scipy", "torch")
HEADER = (
    "                    ms per image             mean            variance       distance to theirs\n"
    "                   theirs  ours  ratio   theirs   ours    theirs   ours      ours  theirs again"
)

Pixels = NDArray[np.uint8]
Batch = Callable[[Pixels, str, int], Pixels]
Row = dict[str, float]


def main() -> None:
    """Run the comparison that the command line asks for."""
    asked = arguments()
    torch.set_num_threads(1)
    np.random.seed(asked.seed)  # their package draws from the global state
    theirs = load_theirs()
    images = load_images(BEDS if asked.beds else asked.images, asked.count, asked.side)
    print(HEADER)
    rows: dict[str, Row] = {}
    for name in CORRUPTIONS + EXTRA:
        rows[name] = compare(images, name, asked.severity, ours(asked.seed), theirs)
        print(line(name, rows[name]), flush=True)
    total = summary(rows)
    print(
        f"\nwhole set: theirs {total['theirs_ms']:.0f} ms per image, ours {total['ours_ms']:.0f} ms: "
        f"{total['ratio']:.1f} times faster, {total['ratio_without_glass_blur']:.1f} without glass_blur"
    )
    setting = {"severity": asked.severity, "seed": asked.seed, "images": len(images), "side": asked.side}
    record = {"where": where(), "setting": setting, "total": total, "corruptions": rows}
    asked.record.parent.mkdir(parents=True, exist_ok=True)
    asked.record.write_text(json.dumps(record, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare our corruptions with the package imagecorruptions.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", type=Path, help="a folder or zip file of photographs")
    source.add_argument("--beds", action="store_true", help="use the photographs of ../shared/beds")
    parser.add_argument("--count", type=int, default=8, help="how many photographs (default: 8)")
    parser.add_argument("--side", type=int, default=224, help="side they are resized to (default: 224)")
    parser.add_argument("--severity", type=int, default=5, help="1 to 5 (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of both packages (default: 0)")
    parser.add_argument("--record", type=Path, default=HERE / "records" / "corruptions.json")
    return parser.parse_args()


def load_images(path: Path, count: int, side: int) -> Pixels:
    """Load photographs, evenly spaced over all names in a folder or zip file."""
    if not path.exists():
        raise BadData(f"there are no photographs at {path}; name a folder or zip file with --images")
    pillow = require("PIL.Image", "bench")
    if path.is_dir():
        files = [(str(file), file.read_bytes) for file in path.rglob("*.*")]
    else:
        archive = zipfile.ZipFile(path)
        files = [(name, partial(archive.read, name)) for name in archive.namelist()]
    photographs = sorted(file for file in files if file[0].lower().endswith((".jpeg", ".jpg", ".png")))
    chosen = [photographs[i * len(photographs) // count][1] for i in range(count)]
    pictures = (pillow.open(io.BytesIO(read())).convert("RGB") for read in chosen)
    return np.stack([np.asarray(picture.resize((side, side))) for picture in pictures])


def load_theirs() -> Batch:
    """Import `imagecorruptions`, mended where current versions of its dependencies broke it."""
    if importlib.util.find_spec("imagecorruptions") is None:
        raise MissingExtra("imagecorruptions is not installed; run: pip install imagecorruptions")
    if importlib.util.find_spec("pkg_resources") is None:
        files = types.ModuleType("pkg_resources")
        files.__dict__["resource_filename"] = beside
        sys.modules["pkg_resources"] = files
    np.__dict__.setdefault("float_", np.float64)
    warnings.simplefilter("ignore")
    functions = importlib.import_module("imagecorruptions.corruptions")
    functions.__dict__["gaussian"] = with_channels(functions.gaussian)
    importlib.import_module("cv2").setNumThreads(1)
    one = importlib.import_module("imagecorruptions").corrupt
    return lambda images, name, severity: np.stack([one(image, severity, name) for image in images])


def beside(module: str, name: str) -> str:
    """Return the path of a file that lies beside a module."""
    return str(Path(sys.modules[module].__file__ or "").parent / name)


def with_channels(gaussian: Callable[..., Any]) -> Callable[..., Any]:
    """Give scikit-image's filter back the argument that it had when the package was written."""

    def filtered(image: Any, *args: Any, multichannel: bool = False, **settings: Any) -> Any:
        return gaussian(image, *args, channel_axis=-1 if multichannel else None, **settings)

    return filtered


def ours(seed: int) -> Batch:
    """Return our corruptions with the interface of theirs."""

    def run(images: Pixels, name: str, severity: int) -> Pixels:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2)
        corrupted: Pixels = corrupt(batch, name, severity, seed=seed).permute(0, 2, 3, 1).numpy()
        return corrupted

    return run


def compare(images: Pixels, name: str, severity: int, ours: Batch, theirs: Batch) -> Row:
    """Time both packages in turn, best of three, and compare what they make of the same images."""
    ours(images, name, severity)  # the first call fills caches
    rounds = [(timed(ours, images, name, severity), timed(theirs, images, name, severity)) for _ in range(3)]
    a, b, again = rounds[0][0][0], rounds[0][1][0], rounds[1][1][0]
    row = {
        "theirs_ms": 1000 * min(seconds for _, (_, seconds) in rounds) / len(images),
        "ours_ms": 1000 * min(seconds for (_, seconds), _ in rounds) / len(images),
        "theirs_mean": b.mean(),
        "ours_mean": a.mean(),
        "theirs_variance": b.var(),
        "ours_variance": a.var(),
        "distance": np.abs(a.astype(float) - b).mean(),
        "distance_of_theirs_to_itself": np.abs(again.astype(float) - b).mean(),
    }
    return {key: round(float(value), 3) for key, value in row.items()}


def timed(batch: Batch, images: Pixels, name: str, severity: int) -> tuple[Pixels, float]:
    """Return the corrupted images and the seconds they took."""
    start = time.perf_counter()
    corrupted = batch(images, name, severity)
    return corrupted, time.perf_counter() - start


def line(name: str, row: Row) -> str:
    """Format one corruption's figures under HEADER."""
    return (
        f"{name:18}{row['theirs_ms']:7.1f}{row['ours_ms']:6.1f}{row['theirs_ms'] / row['ours_ms']:7.1f}"
        f"{row['theirs_mean']:9.1f}{row['ours_mean']:7.1f}{row['theirs_variance']:10.0f}{row['ours_variance']:7.0f}"
        f"{row['distance']:10.2f}{row['distance_of_theirs_to_itself']:14.2f}"
    )


def summary(rows: dict[str, Row]) -> Row:
    """Add the times up over all corruptions."""
    slow, fast = (sum(row[key] for row in rows.values()) for key in ("theirs_ms", "ours_ms"))
    glass = rows["glass_blur"]
    without = (slow - glass["theirs_ms"]) / (fast - glass["ours_ms"])
    total = {"theirs_ms": slow, "ours_ms": fast, "ratio": slow / fast, "ratio_without_glass_blur": without}
    return {key: round(value, 3) for key, value in total.items()}


def where() -> dict[str, Any]:
    """Describe machine and software."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [text.partition(": ")[2] for text in lines if text.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "frost_textures": frost_texture_source(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
    }


if __name__ == "__main__":
    main()
