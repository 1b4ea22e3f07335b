"""Classify pictures with an ONNX file that `resitta export` wrote: neither PyTorch nor resitta is needed.

pip install onnxruntime pillow
python examples/clients/predict_onnx.py adapted.onnx photo.jpg other.png
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: Path, side: tuple[int, int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """The central part of a picture, scaled: floats in [0, 1], 3×H×W. If the card says so, normalise them here."""
    with Image.open(path) as picture:
        fitted = ImageOps.fit(picture.convert("RGB"), side)
    return np.asarray(fitted, np.float32).transpose(2, 0, 1) / np.float32(255)


def main() -> None:
    """Print one line per picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("pictures", nargs="+", type=Path)
    args = parser.parse_args()
    session = onnxruntime.InferenceSession(args.file, providers=["CPUExecutionProvider"])
    height, width = session.get_inputs()[0].shape[2:]
    images = np.stack([read(path, (width, height)) for path in args.pictures])
    (logits,) = session.run(["logits"], {"images": images})
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    for path, row in zip(args.pictures, shares, strict=True):
        print(f"{path}: class {row.argmax()} ({row.max():.0%})")


if __name__ == "__main__":
    main()
