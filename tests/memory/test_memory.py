import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resitta import adapt
from resitta.errors import BadImages, BadState
from resitta.memory.cstu import CSTU
from resitta.memory.entrobank import EntroBank, IndexedEntroBank
from resitta.memory.memory import Memory, Storage, random_choice
from resitta.memory.pbrs import PBRS
from resitta.training.network import Network

CLASSES = 3
KINDS: dict[str, Callable[[int], Memory]] = {
    "entrobank": lambda n: EntroBank(n, generator=torch.Generator(), mature_age=4, forget_age=9),
    "cstu": CSTU,
    "pbrs": lambda n: PBRS(n, generator=torch.Generator()),
}


class Latest(Memory):
    """The last samples of the stream: the simplest memory there is."""

    def admit(self, label: int, entropy: float) -> int | None:
        return (self.clock - 1) % self.capacity


def numbered(start: int, stop: int) -> Tensor:
    """Tiny images that hold their number in the stream."""
    return torch.arange(start, stop, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 2, 3, 3)


def numbers(memory: Memory) -> list[int]:
    assert bool((memory.samples == memory.samples[:, :1, :1, :1]).all())
    return [int(image[0, 0, 0]) for image in memory.samples]


def random_logits(n: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(n, CLASSES, generator=torch.Generator().manual_seed(seed))


def consume(memory: Memory, images: Tensor, logits: Tensor, every: int = 1000) -> None:
    for _ in memory.fill(images, logits, every=every):
        pass


def facts(memory: Memory) -> dict[str, Any]:
    arrays = numbers(memory), memory.labels.tolist(), memory.entropies.tolist(), memory.ages.tolist()
    return {"stored": arrays, "counts": memory.counts.tolist(), "clock": memory.clock, "size": memory.size}


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), max_size=8), every=st.integers(1, 10), capacity=st.integers(1, 5))
def test_fill_yields_at_multiples_of_every_whatever_the_batches(sizes: list[int], every: int, capacity: int) -> None:
    memory, start, due = Latest(capacity), 0, []
    for size in sizes:
        for _ in memory.fill(numbered(start, start + size), random_logits(size), every=every):
            due.append(memory.clock)
            seen = set(range(max(0, memory.clock - capacity), memory.clock))
            assert set(numbers(memory)) == seen  # exactly what came before, nothing of the rest of the batch
        start += size
    assert due == list(range(every, sum(sizes) + 1, every))
    assert memory.clock == sum(sizes)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 15), min_size=1, max_size=6), capacity=st.integers(1, 6))
def test_a_batch_is_added_as_its_samples_one_by_one(
    make: Callable[[int], Memory], sizes: list[int], capacity: int
) -> None:
    total = sum(sizes)
    images, logits = numbered(0, total), random_logits(total)
    batchwise, one_by_one = make(capacity), make(capacity)
    for image_batch, logit_batch in zip(torch.split(images, sizes), torch.split(logits, sizes), strict=True):
        consume(batchwise, image_batch, logit_batch)
    for image, logit in zip(torch.split(images, 1), torch.split(logits, 1), strict=True):
        consume(one_by_one, image, logit)
    assert facts(batchwise) == facts(one_by_one)


def test_a_slot_taken_twice_in_one_batch_holds_the_later_sample() -> None:
    memory = Latest(2)
    consume(memory, numbered(0, 7), random_logits(7))
    assert numbers(memory) == [6, 5]
    assert memory.ages.tolist() == [0, 1]


def test_labels_entropies_and_ages_belong_to_the_stored_images() -> None:
    memory, logits = Latest(4), random_logits(6)
    consume(memory, numbered(0, 6), logits)
    probabilities = logits.double().softmax(1)
    entropies = -(probabilities * probabilities.log()).sum(1)
    for slot, number in enumerate(numbers(memory)):
        assert memory.labels[slot] == logits[number].argmax()
        assert memory.entropies[slot] == pytest.approx(entropies[number].item(), rel=1e-5)
        assert memory.ages[slot] == 5 - number
    assert memory.counts.tolist() == [int((memory.labels == c).sum()) for c in range(CLASSES)]


def test_images_are_allocated_once_and_copied_in() -> None:
    memory, images = Latest(4), numbered(0, 3).clone()
    consume(memory, images, random_logits(3))
    place = memory.images.data_ptr()
    assert memory.images.shape == (4, 2, 3, 3)
    assert memory.samples.shape == (3, 2, 3, 3)
    assert memory.samples.data_ptr() == place
    images.zero_()
    assert numbers(memory) == [0, 1, 2]
    for start in range(3, 30):
        consume(memory, numbered(start, start + 1), random_logits(1))
    assert memory.images.data_ptr() == place


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_samples_without_a_finite_entropy_are_never_stored(make: Callable[[int], Memory]) -> None:
    memory, logits = make(8), random_logits(6)
    logits[1], logits[3, 0], logits[4, 2] = torch.nan, torch.inf, torch.nan
    consume(memory, numbered(0, 6), logits)
    assert numbers(memory) == [0, 2, 5]
    assert memory.ages.tolist() == [5, 3, 0]  # the others still were samples of the stream


def test_only_unstorable_samples_leave_an_empty_memory() -> None:
    memory = EntroBank(4, generator=torch.Generator())
    consume(memory, numbered(0, 3), torch.full((3, CLASSES), torch.nan))
    assert memory.size == len(memory.samples) == 0
    consume(memory, torch.zeros(1, 3, 5, 5), random_logits(1))  # it holds nothing, so any shape may come
    assert memory.samples.shape == (1, 3, 5, 5)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_another_shape_is_refused_and_changes_nothing(make: Callable[[int], Memory]) -> None:
    memory = make(4)
    consume(memory, numbered(0, 3), random_logits(3))
    before = copy.deepcopy(facts(memory))
    with pytest.raises(BadImages, match=r"\(2, 3, 3\).*\(2, 4, 3\)"):
        consume(memory, torch.zeros(2, 2, 4, 3), random_logits(2))
    assert facts(memory) == before
    consume(memory, numbered(3, 4), random_logits(1))
    assert memory.clock == 4


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_batch_costs_one_copy_to_the_host(make: Callable[[int], Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make(5)
    images, logits = numbered(0, 40), random_logits(40)
    copies: list[Tensor] = []
    for name in ("cpu", "tolist", "item"):
        original = getattr(Tensor, name)

        def counted(self: Tensor, original: Callable[[Tensor], Any] = original) -> Any:
            copies.append(self)
            return original(self)

        monkeypatch.setattr(Tensor, name, counted)
    consume(memory, images, logits, every=8)
    assert len(copies) == 1


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_saved_memory_goes_on_as_if_it_had_not_been(make: Callable[[int], Memory]) -> None:
    images, logits = numbered(0, 60), random_logits(60)
    memory, loaded = make(6), make(6)
    consume(memory, images[:30], logits[:30])
    state = copy.deepcopy(memory.state_dict())
    loaded.load_state_dict(state)
    assert facts(loaded) == facts(memory)
    if isinstance(memory, PBRS) and isinstance(loaded, PBRS):
        loaded.generator.set_state(memory.generator.get_state())
    for one in (memory, loaded):
        consume(one, images[30:], logits[30:])
    assert facts(loaded) == facts(memory)
    again = make(6)
    again.load_state_dict(state)  # what loaded has done since must not have changed the snapshot
    assert again.clock == 30
    assert max(numbers(again)) < 30


def test_a_loaded_memory_keeps_the_precision_of_its_images() -> None:
    memory, loaded = Latest(3), Latest(3)
    images = torch.rand(2, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    consume(memory, images, random_logits(2))
    loaded.load_state_dict(copy.deepcopy(memory.state_dict()))
    consume(loaded, images[:1], random_logits(1))
    assert loaded.samples.dtype == torch.float64
    torch.testing.assert_close(loaded.samples[1], images[1], rtol=0, atol=0)


def test_a_loaded_memory_follows_the_images_to_their_device() -> None:
    memory, loaded = Latest(3), Latest(3)
    consume(memory, numbered(0, 2), random_logits(2))
    loaded.load_state_dict(copy.deepcopy(memory.state_dict()))
    consume(loaded, numbered(2, 3).to("meta"), random_logits(1))
    assert loaded.samples.device.type == "meta"


def test_a_memory_of_another_capacity_is_refused() -> None:
    with pytest.raises(BadState, match="memory of 3, this one has 4"):
        Latest(4).load_state_dict(Latest(3).state_dict())


def test_a_fresh_memory_can_be_saved_and_loaded() -> None:
    loaded = Latest(2)
    loaded.load_state_dict(Latest(2).state_dict())
    consume(loaded, numbered(0, 1), random_logits(1))
    assert numbers(loaded) == [0]


def test_rescoring_replaces_labels_and_entropies_only() -> None:
    memory, fresh = Latest(4), random_logits(3, seed=1)
    consume(memory, numbered(0, 3), random_logits(3))
    before = facts(memory)
    memory.rescore(fresh)
    assert memory.labels.tolist() == fresh.argmax(1).tolist()
    probabilities = fresh.double().softmax(1)
    np.testing.assert_allclose(memory.entropies, -(probabilities * probabilities.log()).sum(1), rtol=1e-5)
    assert (numbers(memory), memory.ages.tolist()) == (before["stored"][0], before["stored"][3])
    assert memory.clock == 3


@pytest.mark.parametrize("make", [*KINDS.values(), lambda n: IndexedEntroBank(n, generator=torch.Generator())])
def test_a_quota_decides_who_gets_which_slot(make: Callable[[int], Memory]) -> None:
    memory, asked = make(6), []

    def quota(slot: int | None, place: int) -> int | None:
        asked.append(place)
        return slot if memory.size < memory.capacity else 2

    memory.quota = quota
    memory.screen = lambda _, logits: logits.masked_fill((torch.arange(len(logits)) == 1)[:, None], torch.nan)
    list(memory.fill(numbered(0, 40), random_logits(40), every=64))
    assert asked == [0, *range(2, 40)], "places in the batch, without the one that was left out"
    assert numbers(memory)[2] == 39
    memory.quota = lambda slot, place: None
    before = numbers(memory)
    list(memory.fill(numbered(40, 80), random_logits(40, 1), every=64))
    assert numbers(memory) == before


def test_random_choice_is_uniform_and_seeded() -> None:
    slots = np.array([2, 5, 7])
    draws = [random_choice(slots, generator) for generator in [torch.Generator().manual_seed(0)] for _ in range(3000)]
    assert set(draws) == {2, 5, 7}
    assert all(900 < draws.count(slot) < 1100 for slot in (2, 5, 7))
    same = torch.Generator().manual_seed(0)
    assert [random_choice(slots, same) for _ in range(20)] == draws[:20]


@pytest.mark.parametrize("birth", [0, 3, 5, 9])
def test_samples_of_a_time_gone_by_are_forgotten(birth: int) -> None:
    bank = IndexedEntroBank(8, generator=torch.Generator().manual_seed(0))
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 2, 2)
    bank.add(images, np.arange(6) % 3, np.linspace(0.1, 0.6, 6))
    bank.forget_before(birth)
    left = [n for n in range(1, 7) if n >= birth]
    assert bank.births[: bank.size].tolist() == left
    assert bank.images[: bank.size, 0, 0, 0].tolist() == [n - 1.0 for n in left]
    assert bank.labels.tolist() == [(n - 1) % 3 for n in left]
    for _ in range(4):  # the index knows what is left
        bank.add(images, np.arange(6) % 3, np.linspace(0.1, 0.6, 6))
    assert bank.size == 8


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
