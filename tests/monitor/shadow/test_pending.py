import numpy as np
import pytest
import torch
from torch import Tensor, nn

from resitta.monitor.shadow.pending import BATCH, Pending, rows, signs
from resitta.training.network import Network


def images(n: int, size: int = 10) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_images_wait_for_a_batch_or_for_others_of_another_size(model: nn.Module) -> None:
    source, pending, sizes = Network(model), Pending(), list[int]()
    plain = source.predict

    def predict(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return plain(batch)

    source.predict = predict  # type: ignore[method-assign, assignment]
    for start, count in ((0, 20), (20, 50), (70, 1)):
        pending.keep(source, np.arange(start, start + count), images(count), torch.zeros(count, 5))
    assert sizes == [2 * BATCH]
    pending.keep(source, np.arange(71, 73), images(2, size=12), torch.zeros(2, 5))
    pending.predict(source)
    pending.predict(source)
    assert sizes == [64, 7, 2]
    assert [ids.tolist() for ids, _ in pending.arrived(wait=False)] == [
        list(range(64)),
        list(range(64, 71)),
        [71, 72],
    ]
    assert not list(pending.arrived(wait=True))


def test_images_whose_prediction_fails_are_dropped(model: nn.Module) -> None:
    source, pending = Network(model), Pending()
    pending.keep(source, np.arange(3), torch.rand(3, 4, 10, 10), torch.zeros(3, 5))  # four channels
    with pytest.raises(Exception, match="channels"):
        pending.predict(source)
    pending.predict(source)
    assert not list(pending.arrived(wait=True))


def test_signs_are_of_both_networks_in_the_order_of_a_ledger() -> None:
    found = signs(torch.tensor([[0.0, 9.0, -torch.inf]]), torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.bfloat16))
    assert found.shape == (1, 6)
    assert found[0, :2].tolist() == [1, 0]
    p = torch.tensor([3.0, 0.0, 0.0]).softmax(0)
    assert found[0, 3].item() == pytest.approx(p[0].item())
    assert found[0, 5].item() == pytest.approx(-(p * p.log()).sum().item(), rel=1e-5)
    assert found.isfinite().all()


def test_rows_are_copies() -> None:
    values = torch.zeros(3, 2)
    for places in (np.arange(3), np.array([0, 2])):
        copied = rows(values, places)
        copied.fill_(1)
        assert len(copied) == len(places)
    assert not values.any()
