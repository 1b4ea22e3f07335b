"""Make the photographs and the network of `resitta demo` from a testbed, or check those in the package against it.

    python benchmarks/demo_photographs.py            # writes src/resitta/demo/photographs/
    python benchmarks/demo_photographs.py --check    # exit status 1 if a pixel or a byte of the weights differs

Needs the folder of testbeds: $RESITTA_BEDS, or --beds. Of each class every fifth test image is taken, in the order of
the file names. Prints the size of the files, and the clean error of the network on these images and on all 10,000.
"""

import filecmp
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from beds import with_testbeds
from numpy.typing import NDArray
from PIL import Image

from resitta.data.corrupted import evenly
from resitta.data.datasets import ImageSet, open_images
from resitta.demo.photographs import CHECKPOINT, CLASSES, EACH, FOLDER, load_photographs, sheet, source_network

NETWORK = "cifar10-wrn16x1.safetensors"


def main() -> int:
    """Write or compare; return the exit status."""
    parser = with_testbeds(__doc__, choose=False)
    parser.add_argument("--check", action="store_true", help="change nothing")
    args = parser.parse_args()
    every = open_images(args.beds / "cifar10-test.zip")
    chosen = evenly(every, EACH * len(CLASSES))
    if not args.check:
        write(chosen, args.beds / NETWORK)
    differing = differences(chosen, args.beds / NETWORK)
    for what in differing:
        print(f"{what} differs from the testbed; run: python benchmarks/demo_photographs.py")
    sizes = [path.stat().st_size for path in FOLDER.iterdir()]
    print(f"{sum(sizes):,} bytes in {len(sizes)} files")
    print(
        f"clean error: {clean_error(chosen):.2f} % on these {len(chosen):,}, {clean_error(every):.2f} % on all images"
    )
    return int(bool(differing))


def write(chosen: ImageSet, network: Path) -> None:
    """Write one lossless sheet per class, its images below each other, and copy the weights."""
    FOLDER.mkdir(exist_ok=True)
    for label, name in enumerate(CLASSES):
        pixels = pixels_of(chosen, label)
        picture = Image.fromarray(pixels.reshape(-1, *pixels.shape[2:]))
        picture.save(sheet(name), lossless=True, quality=100, method=6)  # for lossless files, quality is effort
    shutil.copyfile(network, CHECKPOINT)


def differences(chosen: ImageSet, network: Path) -> list[str]:
    """The files in the package that do not hold what the testbed has."""
    kept = load_photographs()
    same = [np.array_equal(pixels_of(kept, label), pixels_of(chosen, label)) for label in range(len(CLASSES))]
    wrong = [sheet(name).name for name, equal in zip(CLASSES, same, strict=True) if not equal]
    return wrong if filecmp.cmp(network, CHECKPOINT, shallow=False) else [*wrong, CHECKPOINT.name]


def pixels_of(images: ImageSet, label: int) -> NDArray[np.uint8]:
    """The images of a class, N×H×W×3."""
    pixels: NDArray[np.uint8] = images.read(np.flatnonzero(images.labels == label)).permute(0, 2, 3, 1).numpy()
    return pixels


@torch.no_grad()
def clean_error(images: ImageSet) -> float:
    """The error of the network in the package on images without corruption, in per cent."""
    network, wrong = source_network(), 0
    for places in np.array_split(np.arange(len(images)), 20):
        logits = network(images.read(places).float() / 255)
        wrong += int((logits.argmax(1).numpy() != images.labels[places]).sum())
    return 100 * wrong / len(images)


if __name__ == "__main__":
    sys.exit(main())
