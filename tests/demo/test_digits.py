from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.demo import digits as module
from resitta.demo.digits import cache_file, cached_network, digit_network, keep, load_digits, painted, train


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESITTA_CACHE", str(tmp_path))


def test_digits_are_real_and_divided() -> None:
    digits = load_digits()
    assert (len(digits.train), len(digits.test)) == (1000, 797)
    assert digits.train.shape[1:] == (1, 32, 32)
    assert np.bincount(digits.test_labels).min() > 50
    everything = torch.cat([digits.train, digits.test]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 1797, "no digit is in both parts"


def test_painting_is_seeded_and_in_range() -> None:
    ink = load_digits().test[:20]
    one, two, other = (painted(ink, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == (20, 3, 32, 32)
    assert one.min() >= 0
    assert one.max() <= 1
    assert one.std() > 0.1


def test_training_learns_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 120)
    digits, steps = load_digits(), []
    network = train(digits, lambda done, total: steps.append((done, total)))
    images = painted(digits.test, torch.Generator().manual_seed(0))
    with torch.no_grad():
        accuracy = (network(images).argmax(1).numpy() == digits.test_labels).mean()
    assert accuracy > 0.5
    assert steps[-1] == (120, 120)
    assert not network.training


def test_a_network_is_kept_and_found_again() -> None:
    assert cached_network() is None
    network = digit_network().eval()
    keep(network)
    found = cached_network()
    assert found is not None
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(found(images), network(images))


def test_a_damaged_cache_counts_as_none() -> None:
    cache_file().parent.mkdir(parents=True, exist_ok=True)
    cache_file().write_bytes(b"damaged")
    assert cached_network() is None
