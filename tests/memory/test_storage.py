import pytest
import torch
from torch import nn

from resitta import adapt
from resitta.memory.storage import Storage
from resitta.training.network import Network


@pytest.mark.parametrize("normalized", [None, ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
def test_bytes_come_back_as_they_were(normalized: tuple[tuple[float, ...], tuple[float, ...]] | None) -> None:
    network = Network(nn.Conv2d(3, 1, 1), normalized=normalized)
    images = network.from_pixels(torch.randint(0, 256, (4, 3, 5, 5)) / 255)
    storage = Storage(network, as_bytes=True)
    kept = storage.keep(images)
    assert kept.dtype == torch.uint8
    torch.testing.assert_close(storage.bring_back(kept), images)


def test_a_bank_of_bytes_on_the_host_changes_nothing_for_images_made_of_bytes(model: nn.Module) -> None:
    images = torch.randint(0, 256, (150, 3, 10, 10), generator=torch.Generator().manual_seed(0)) / 255
    plain, bytewise = adapt(model, "resitta"), adapt(model, "resitta", bank_device="cpu", bank_bytes=True)
    for start in range(0, 150, 50):
        torch.testing.assert_close(bytewise(images[start : start + 50]), plain(images[start : start + 50]))
    memory = bytewise.learner.memory()
    assert memory is not None
    assert memory.images.dtype == torch.uint8
    assert plain.stats.updates == bytewise.stats.updates == 2
