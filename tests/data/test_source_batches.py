import numpy as np
import torch

from resitta.data.datasets import ArrayImages
from resitta.data.source_batches import SourceBatches


def test_batches_are_floats_of_images_chosen_evenly_and_always_alike() -> None:
    labels = np.repeat(np.arange(4), 25)
    pixels = np.broadcast_to((labels * 20 + 3).astype(np.uint8)[:, None, None, None], (100, 4, 4, 3))
    batches = SourceBatches(ArrayImages(pixels, labels), 20, size=8)
    first, second = (torch.cat(list(batches)) for _ in range(2))
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert torch.equal(first, second)
    found = (first[:, 0, 0, 0] * 255).round().long()
    assert torch.bincount(found, minlength=64)[[3, 23, 43, 63]].tolist() == [5, 5, 5, 5]
    assert found.tolist() != sorted(found.tolist())
    assert len(batches.dataset) == 20
