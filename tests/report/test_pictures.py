import numpy as np
import torch

from resitta.memory.entrobank import EntroBank
from resitta.report.pictures import bank_items


def test_the_bank_is_listed_by_label_and_age() -> None:
    bank = EntroBank(4, generator=torch.Generator())
    images = torch.stack([torch.full((3, 2, 2), shade) for shade in (0.0, 0.2, 1.0)])
    bank.add(images, np.array([1, 0, 1]), np.array([0.5, 0.25, 0.75]))
    items = bank_items(bank, classes=["cat", "dog"])
    found = [(item.label, item.age, item.entropy) for item in items]
    assert found == [("cat", 1, 0.25), ("dog", 0, 0.75), ("dog", 2, 0.5)]
    assert [int(item.image[0, 0, 0]) for item in items] == [51, 255, 0]


def test_without_names_or_without_a_memory() -> None:
    bank = EntroBank(4, generator=torch.Generator())
    bank.add(torch.zeros(1, 3, 2, 2), np.array([7]), np.array([0.5]))
    assert [item.label for item in bank_items(bank)] == ["7"]
    assert bank_items(None) == ()
