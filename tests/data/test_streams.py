import numpy as np
import torch

from resitta.data.datasets import ArrayImages
from resitta.data.orders import dirichlet, shuffled
from resitta.data.streams import continual, mixed


def numbered(first: int, n: int) -> ArrayImages:
    """Images whose every pixel is their number, so that one can see which came."""
    pixels = np.arange(first, first + n, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(4, 2).repeat(4, 3)
    return ArrayImages(pixels, np.arange(n) % 5, classes=5)


def test_domains_follow_each_other_and_batches_straddle_borders() -> None:
    stream = continual(["a", "b"], [numbered(0, 10), numbered(100, 10)], shuffled, np.random.default_rng(0))
    batches = list(stream.batches(8))
    assert [len(b.labels) for b in batches] == [8, 8, 4], "the last short batch counts"
    assert batches[1].domains.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    seen = torch.cat([b.images[:, 0, 0, 0] for b in batches]).mul(255).round().long()
    assert sorted(seen[:10].tolist()) == list(range(10))
    assert sorted(seen[10:].tolist()) == list(range(100, 110))
    labels = np.concatenate([b.labels for b in batches])
    assert labels.tolist() == [int(number) % 100 % 5 for number in seen], "labels stay with their images"


def test_images_are_floats_in_the_unit_interval() -> None:
    batch = next(continual(["a"], [numbered(250, 6)], shuffled, np.random.default_rng(0)).batches(6))
    assert batch.images.dtype == torch.float32
    assert batch.images.max() == 1.0


def test_mixed_brings_every_image_of_every_domain_once() -> None:
    stream = mixed(["a", "b"], [numbered(0, 30), numbered(100, 30)], np.random.default_rng(0))
    assert sorted(zip(stream.domain.tolist(), stream.index.tolist(), strict=True)) == [
        (d, i) for d in range(2) for i in range(30)
    ]
    assert stream.borders == ()
    assert 0 < np.mean(stream.domain[:20]) < 1, "both domains from the start"


def test_a_seed_fixes_the_stream() -> None:
    sets = [numbered(0, 50), numbered(50, 50)]
    one, two = (continual(["a", "b"], sets, dirichlet, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one.index, two.index)
    assert one.classes == 5
    assert one.borders == (0, 50)
