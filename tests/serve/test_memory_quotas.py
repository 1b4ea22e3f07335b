from collections.abc import Sequence

import numpy as np
import pytest
import torch

from resitta.checkpoint.tree import same
from resitta.memory.cstu import CSTU
from resitta.memory.entrobank import EntroBank, IndexedEntroBank
from resitta.memory.memory import Memory
from resitta.serve.memory_quotas import PROTECTED, Shares

BANKS = [EntroBank, IndexedEntroBank]
CLASSES = 4


def bank_of(kind: type[EntroBank] = IndexedEntroBank, capacity: int = 16) -> EntroBank:
    return kind(capacity, generator=torch.Generator().manual_seed(0))


def send(memory: Memory, shares: Shares | None, clients: Sequence[int], sure: Sequence[bool], seed: int = 0) -> None:
    """Bring samples; those that are sure have the lowest entropies."""
    rng = np.random.default_rng(seed)
    entropies = rng.random(len(clients)) + np.where(sure, 0.0, 1.0)
    if shares is not None:
        shares.begin(memory, clients)
    memory.classes = CLASSES
    memory.add(torch.rand(len(clients), 1, 2, 2), rng.integers(0, CLASSES, len(clients)), entropies)


@pytest.mark.parametrize("kind", BANKS)
def test_a_client_that_is_sure_of_everything_gets_its_share_and_no_more(kind: type[EntroBank]) -> None:
    bank, shares = bank_of(kind), Shares()
    for seed in range(40):
        clients = [0, 1, 2, 3, 9, 9, 9, 9]
        send(bank, shares, clients, [client == 9 for client in clients], seed)
    assert shares.held[9] <= 5
    assert min(shares.held[client] for client in range(4)) >= 2
    plain = bank_of(kind)
    for seed in range(40):
        send(plain, None, clients, [client == 9 for client in clients], seed)
    assert (plain.entropies < 1).sum() >= 14, "without a quota it takes over the bank"


def test_a_flood_that_came_first_gives_way() -> None:
    bank, shares = bank_of(), Shares()
    send(bank, shares, [9] * 100, [True] * 100)
    assert shares.held == {9: 16}
    for seed in range(20):
        send(bank, shares, [9] * 20 + [1, 2, 3], [True] * 23, seed)
    assert shares.held[9] <= 6
    assert sum(shares.held.values()) == 16


@pytest.mark.parametrize("kind", BANKS)
def test_one_client_alone_is_decided_as_without_a_quota(kind: type[EntroBank]) -> None:
    plain, shared, shares = bank_of(kind), bank_of(kind), Shares()
    for seed in range(30):
        sure = [bool(seed % 3)] * 20
        for memory, quota in ((plain, None), (shared, shares)):
            torch.manual_seed(seed)
            send(memory, quota, [5] * 20, sure, seed)
    assert same(plain.get_extra_state(), shared.get_extra_state())


def test_places_of_clients_that_have_gone_are_free_after_a_while() -> None:
    bank, shares = bank_of(), Shares()
    send(bank, shares, [1] * 16, [False] * 16)
    send(bank, shares, [2] * 60, [True] * 60)
    assert shares.held[1] == 8
    for seed in range(PROTECTED // 50 + 2):
        send(bank, shares, [2] * 50, [True] * 50, seed)
    assert shares.held[2] == 16


def test_a_client_whose_turn_it_is_not_renews_its_own_samples() -> None:
    bank, shares = bank_of(capacity=4), Shares()
    send(bank, shares, [1, 1, 2, 2], [True] * 4)
    before = set(bank.births.tolist())
    for seed in range(9):
        send(bank, shares, [1] * 10, [True] * 10, seed)
    assert shares.held == {1: 2, 2: 2}
    assert len(before & set(bank.births.tolist())) == 2, "those of the other client"


def test_a_memory_that_was_rolled_back_or_rearranged_belongs_to_nobody() -> None:
    bank, shares = bank_of(), Shares()
    send(bank, shares, [1] * 16, [True] * 16)
    before = bank.get_extra_state()
    send(bank, shares, [2] * 30, [True] * 30)
    bank.set_extra_state(before)
    shares.begin(bank, [3])
    assert shares.held[1] == 8
    assert shares.held[2] == 0
    bank.forget_before(bank.clock - 3)
    assert bank.size == 4
    send(bank, shares, [3] * 40, [True] * 40)
    assert shares.held[3] >= 12


def test_a_memory_rearranged_in_the_middle_of_a_step_is_no_trouble() -> None:
    bank, shares = bank_of(capacity=8), Shares()
    send(bank, shares, [1] * 4 + [2] * 4, [True] * 8)
    shares.begin(bank, [1] * 30)
    bank.forget_before(3)  # as a method does that begins a new domain
    bank.add(torch.rand(30, 1, 2, 2), np.zeros(30, np.int64), np.linspace(0.9, 0.1, 30))
    shares.begin(bank, [])
    assert sum(shares.held.values()) <= bank.size == 8


def test_places_in_the_batch_survive_samples_that_were_left_out() -> None:
    bank, shares = bank_of(), Shares()
    bank.screen = lambda images, logits: logits.masked_fill(torch.tensor([[True], [False], [True], [False]]), torch.nan)
    shares.begin(bank, [1, 2, 3, 4])
    list(bank.fill(torch.rand(4, 1, 2, 2), torch.rand(4, CLASSES), every=64))
    assert shares.held == {2: 1, 4: 1}


def test_other_memories_share_as_well() -> None:
    memory, shares = CSTU(16), Shares()
    for seed in range(40):
        send(memory, shares, [0, 1, 2, 3, 9, 9, 9, 9], [False] * 4 + [True] * 4, seed)
    assert shares.held[9] <= 6
