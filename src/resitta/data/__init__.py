"""Images: data sets, corruptions, and the order of the images in a stream.

`resitta.data.fetch("cifar10c", "data")` downloads a public corrupted set. `resitta.data.write_corrupted` corrupts your
own images and writes them in the same layout.
"""

from resitta.data.corrupted import write_corrupted
from resitta.data.download import fetch

__all__ = ["fetch", "write_corrupted"]
