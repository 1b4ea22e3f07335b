import copy
import dataclasses
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import resitta
from resitta.errors import BadImages, BadSetting
from resitta.training import source_statistics
from resitta.training.network import Network
from resitta.training.source_statistics import CheckedBatches, SourceImages, SourceStatistics, as_source


def statistics(**changes: Any) -> SourceStatistics:
    values: dict[str, Any] = {"method": "eata", "tensors": {"a": torch.ones(2), "b": torch.zeros(1)}, "images": 10}
    return SourceStatistics(**values | changes)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "petta"},
        {"tensors": {"a": torch.ones(2), "b": torch.ones(1)}},
        {"tensors": {"a": torch.ones(2), "c": torch.zeros(1)}},
        {"tensors": {"a": torch.ones(2).double(), "b": torch.zeros(1)}},
        {"tensors": {"a": torch.ones(1, 2), "b": torch.zeros(1)}},
    ],
)
def test_they_are_equal_as_their_tensors_are(change: dict[str, Any]) -> None:
    same = statistics(tensors={"b": torch.zeros(1), "a": torch.ones(2)})
    assert same == statistics()
    assert hash(same) == hash(statistics())
    assert statistics(**change) != statistics()


def test_copies_and_pickles_are_equal_and_print_briefly() -> None:
    found = statistics(origin="clean images of the bench")
    assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == found
    assert repr(found).startswith("<statistics of 10 source images (clean images of the bench) for eata, ")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.images = 3  # type: ignore[misc]


def network() -> Network:
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double())


def images(n: int) -> Tensor:
    return torch.rand(n, 3, 2, 2)


def test_batches_of_a_loader_come_as_they_are_in_the_networks_precision() -> None:
    pool, labels = images(10), torch.arange(10)
    for given in (DataLoader(TensorDataset(pool, labels), batch_size=4), [pool[:4], (pool[4:8],), [pool[8:]]]):
        checked = CheckedBatches(SourceImages(given), network())
        batches = list(checked)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert torch.equal(torch.cat(batches), pool.double())
        assert checked.taken == 10


def test_a_tensor_is_shuffled_always_alike() -> None:
    pool = images(150)
    first, second = (torch.cat(list(CheckedBatches(SourceImages(pool), network()))) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, pool.double())
    torch.testing.assert_close(first.sum(0), pool.double().sum(0))
    assert [len(batch) for batch in SourceImages(pool)] == [64, 64, 22]


def test_no_more_than_the_limit_is_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(source_statistics, "MOST", 10)
    seen: list[tuple[int, int]] = []

    def endless() -> Iterator[Tensor]:
        while True:
            yield images(4)

    with caplog.at_level(logging.WARNING):
        batches = list(CheckedBatches(SourceImages(endless()), network(), lambda *done: seen.append(done)))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert "source holds more than 10 images; only the first 10 are used" in caplog.text


def test_an_array_is_shuffled_as_a_tensor_is() -> None:
    array = (images(300).permute(0, 2, 3, 1) * 255).byte().numpy()
    source, tensors = SourceImages(array), SourceImages(resitta.images(array))
    assert source.count == 300
    for one, other in zip(CheckedBatches(source, network()), CheckedBatches(tensors, network()), strict=True):
        assert torch.equal(one, other)


def test_progress_knows_how_many_there_are() -> None:
    assert SourceImages(images(20)).count == 20
    assert SourceImages(DataLoader(TensorDataset(images(6)))).count == 6
    assert SourceImages(iter([])).count == source_statistics.MOST


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "source holds no images; give it some"),
        ([(images(2) * 255).int()], "source: images must be uint8, uint16, bool, or floating point in"),
        ([images(2) * 3], "source: pixels must lie in"),
        ([images(2) * torch.nan], "source: .* NaN or Inf"),
        ([{"pixels": images(2)}], "source: images must be a batch, found a dict .*; pass batch"),
        (torch.ones(()), "source holds no images"),
    ],
)
def test_other_things_are_refused(given: Any, message: str) -> None:
    with pytest.raises(BadImages, match=message):
        list(CheckedBatches(SourceImages(given), network()))


def test_a_setting_takes_images_statistics_and_paths(tmp_path: Any) -> None:
    assert as_source(None) is None
    assert as_source(tmp_path / "a") == str(tmp_path / "a")
    found, given = statistics(), SourceImages([])
    assert as_source(found) is found
    assert as_source(given) is given
    with pytest.raises(BadSetting, match="source must be batches of clean images .*, found a int"):
        as_source(3)
