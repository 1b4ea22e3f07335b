from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.memory.entrobank import (
    EntroBank,
    IndexedEntroBank,
    RecentEntroBank,
    dominant_slots,
    most_uncertain,
    outdated,
    overconfident,
)

Stream = list[tuple[int, float]]
SAMPLES = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
STREAMS = st.lists(SAMPLES, min_size=30, max_size=60)


@dataclass
class Sample:
    number: int
    label: int
    entropy: float
    age: int = 0


class LiteralBank:
    """Algorithm 1 on a list of samples, line by line."""

    def __init__(self, capacity: int, forget_age: int, mature_age: int, *rules: bool) -> None:
        self.capacity, self.forget_age, self.mature_age = capacity, forget_age, mature_age
        self.drop_outdated, self.drop_overconfident, self.compare_uncertainty = rules
        self.generator = torch.Generator().manual_seed(0)
        self.samples: list[Sample] = []

    def add(self, new: Sample) -> None:
        for sample in self.samples:
            sample.age += 1
        if len(self.samples) < self.capacity:
            self.samples.append(new)
        elif (leaving := self.leaving(new)) is not None:
            self.samples[self.samples.index(leaving)] = new

    def leaving(self, new: Sample) -> Sample | None:
        labels = [sample.label for sample in self.samples]
        most = max(labels.count(label) for label in labels)
        dominant = [sample for sample in self.samples if labels.count(sample.label) == most]
        if old := [s for s in dominant if self.drop_outdated and s.age >= self.forget_age]:
            return max(old, key=lambda s: s.age)
        if sure := [s for s in dominant if self.drop_overconfident and self.is_overconfident(s)]:
            return min(sure, key=lambda s: (s.entropy, -s.age))
        if not self.compare_uncertainty:
            return dominant[int(torch.randint(len(dominant), (), generator=self.generator))]
        doubtful = max(dominant, key=lambda s: (s.entropy, s.age))
        return doubtful if new.entropy < doubtful.entropy else None

    def is_overconfident(self, sample: Sample) -> bool:
        lowest = min(other.entropy for other in self.samples if other.label == sample.label)
        return sample.age >= self.mature_age and sample.entropy == lowest


def offer(bank: EntroBank, samples: Stream, first: int) -> None:
    images = torch.arange(first, first + len(samples)).float().view(-1, 1, 1, 1)
    labels, entropies = [label for label, _ in samples], [entropy for _, entropy in samples]
    bank.add(images, np.array(labels, dtype=np.int64), np.array(entropies, dtype=np.float64))


def in_bank(bank: EntroBank) -> list[Sample]:
    columns = (bank.samples.flatten().tolist(), bank.labels.tolist(), bank.entropies.tolist(), bank.ages.tolist())
    return [Sample(int(number), label, entropy, age) for number, label, entropy, age in zip(*columns, strict=True)]


def filled(samples: Stream, forget_age: int = 1000, mature_age: int = 200) -> EntroBank:
    bank = EntroBank(len(samples), generator=torch.Generator(), forget_age=forget_age, mature_age=mature_age)
    offer(bank, samples, first=0)
    return bank


def stored_after(bank: EntroBank, *newcomers: tuple[int, float]) -> list[int]:
    offer(bank, list(newcomers), first=bank.size)
    return [sample.number for sample in in_bank(bank)]


@pytest.mark.parametrize("off", [None, 0, 1, 2])
@settings(max_examples=60, deadline=None)
@given(
    samples=STREAMS,
    capacity=st.integers(1, 8),
    ages=st.tuples(st.integers(1, 12), st.integers(1, 20)),
    chunk=st.integers(1, 9),
)
def test_every_decision_is_that_of_the_literal_bank(
    off: int | None, samples: Stream, capacity: int, ages: tuple[int, int], chunk: int
) -> None:
    mature_age, forget_age = ages
    rules = [index != off for index in range(3)]
    literal = LiteralBank(capacity, forget_age, mature_age, *rules)
    bank = EntroBank(
        capacity,
        generator=torch.Generator().manual_seed(0),
        forget_age=forget_age,
        mature_age=mature_age,
        drop_outdated=rules[0],
        drop_overconfident=rules[1],
        compare_uncertainty=rules[2],
    )
    for first in range(0, len(samples), chunk):
        part = samples[first : first + chunk]
        offer(bank, part, first)
        for number, (label, entropy) in enumerate(part, start=first):
            literal.add(Sample(number, label, entropy))
        assert in_bank(bank) == literal.samples


def test_a_bank_with_room_takes_everything() -> None:
    bank = EntroBank(5, generator=torch.Generator(), forget_age=1, mature_age=1)
    assert stored_after(bank, (0, 9.0), (0, 9.0), (0, 0.0), (1, 9.0)) == [0, 1, 2, 3]


def test_the_class_of_the_newcomer_does_not_matter() -> None:
    assert stored_after(filled([(0, 0.5), (0, 0.4), (1, 0.9)]), (1, 0.1)) == [3, 1, 2]
    assert stored_after(filled([(0, 0.5), (0, 0.4), (1, 0.9)]), (2, 0.6)) == [0, 1, 2]  # not below 0.5


def test_an_equal_entropy_does_not_enter() -> None:
    assert stored_after(filled([(0, 0.5), (0, 0.25)]), (0, 0.5)) == [0, 1]
    assert stored_after(filled([(0, 0.5), (0, 0.25)]), (0, 0.4999)) == [2, 1]


def test_the_rules_come_in_the_order_of_the_paper() -> None:
    samples = [(0, 0.3), (0, 0.1), (0, 0.9)]  # oldest, most confident, most uncertain
    assert stored_after(filled(samples, forget_age=3, mature_age=2), (1, 0.0)) == [3, 1, 2]
    assert stored_after(filled(samples, forget_age=4, mature_age=2), (1, 0.0)) == [0, 3, 2]
    assert stored_after(filled(samples, forget_age=4, mature_age=3), (1, 0.0)) == [0, 1, 3]


def test_over_confidence_is_measured_within_the_own_class() -> None:
    samples = [(0, 0.5), (0, 0.6), (1, 0.1), (1, 0.2)]  # at age 3 slots 0 and 1 are mature, 0 is its class's lowest
    assert stored_after(filled(samples, mature_age=3), (1, 0.9)) == [4, 1, 2, 3]
    samples = [(0, 0.6), (0, 0.5), (1, 0.1), (1, 0.2)]  # now the class's lowest is slot 1, of age 3
    assert stored_after(filled(samples, mature_age=4), (1, 0.9)) == [0, 1, 2, 3]


def test_ages_count_from_the_sample_after() -> None:
    bank = filled([(0, 0.5)], forget_age=2, mature_age=9)
    assert stored_after(bank, (0, 0.9)) == [0]  # age 1
    assert stored_after(bank, (0, 0.9)) == [1]  # age 2


def test_the_default_ages_are_those_of_the_paper() -> None:
    bank = EntroBank(1, generator=torch.Generator())
    offer(bank, [(0, 0.5)], first=0)
    assert stored_after(bank, *[(0, 0.9)] * 199) == [0]
    offer(bank, [(0, 0.9)], first=777)
    assert in_bank(bank)[0].number == 777  # mature at 200
    bank = EntroBank(2, generator=torch.Generator(), drop_overconfident=False)
    assert stored_after(bank, *[(0, 0.1)] * 1000) == [0, 1]
    offer(bank, [(0, 0.9)], first=777)
    assert [sample.number for sample in in_bank(bank)] == [777, 1]  # outdated at 1000


def test_ties_go_to_the_older_then_to_the_lower_slot() -> None:
    ages, entropies, slots = np.array([3, 7, 7, 5]), np.array([0.5, 0.5, 0.5, 0.5]), np.arange(4)
    assert outdated(slots, ages, forget_age=5) == 1
    assert outdated(slots, ages, forget_age=8) is None
    assert overconfident(slots, np.zeros(4, dtype=np.int64), ages, entropies, mature_age=1) == 1
    assert overconfident(slots, np.zeros(4, dtype=np.int64), ages, entropies, mature_age=8) is None
    assert most_uncertain(slots, ages, entropies) == 1
    assert most_uncertain(np.array([0, 2, 3]), ages, entropies) == 2


def test_all_classes_with_the_highest_count_are_dominant() -> None:
    assert dominant_slots(np.array([5, 2, 2, 0, 5])).tolist() == [0, 1, 2, 4]
    assert dominant_slots(np.array([4])).tolist() == [0]


def test_without_the_uncertainty_rule_any_dominant_sample_may_leave_and_chance_is_seeded() -> None:
    def run(seed: int) -> list[int]:
        bank = EntroBank(4, generator=torch.Generator().manual_seed(seed), compare_uncertainty=False)
        return stored_after(bank, (0, 0.1), (0, 0.2), (0, 0.3), (1, 0.9), (2, 9.0))

    results = [run(seed) for seed in range(30)]
    assert {tuple(result) for result in results} == {(4, 1, 2, 3), (0, 4, 2, 3), (0, 1, 4, 3)}
    assert results == [run(seed) for seed in range(30)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[tuple[int, float]], dict[str, int | bool]]:
    """Samples in runs of one class, with entropies that often tie, and rules with short ages."""
    runs = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=25))
    labels = [label for label, length in runs for _ in range(length)]
    entropies = draw(st.lists(st.integers(0, 9), min_size=len(labels), max_size=len(labels)))
    rules: dict[str, int | bool] = {
        "capacity": draw(st.integers(1, 12)),
        "forget_age": draw(st.integers(1, 60)),
        "mature_age": draw(st.integers(1, 30)),
        "drop_outdated": draw(st.booleans()),
        "drop_overconfident": draw(st.booleans()),
        "compare_uncertainty": draw(st.integers(0, 3)) > 0,
    }
    return [(label, entropy / 4) for label, entropy in zip(labels, entropies, strict=True)], rules


def contents(bank: EntroBank) -> list[list[float]]:
    return [bank.labels.tolist(), bank.entropies.tolist(), bank.births[: bank.size].tolist()]


@settings(max_examples=150, deadline=None)
@given(streams())
def test_every_decision_is_that_of_the_plain_bank(case: tuple[list[tuple[int, float]], dict[str, int | bool]]) -> None:
    samples, rules = case
    banks = [kind(generator=torch.Generator().manual_seed(0), **rules) for kind in (EntroBank, IndexedEntroBank)]  # type: ignore[arg-type]
    for label, entropy in samples:
        for bank in banks:
            bank.add(torch.zeros(1, 1, 1, 1), np.array([label]), np.array([entropy]))
        assert contents(banks[0]) == contents(banks[1])


def long_filled(kind: type[EntroBank], samples: int = 3000) -> EntroBank:
    rng = np.random.default_rng(0)
    bank = kind(50, generator=torch.Generator(), mature_age=40, forget_age=150)
    labels = np.repeat(rng.integers(0, 7, samples // 10), 10)
    bank.add(torch.zeros(samples, 1, 1, 1), labels, rng.random(samples).round(2))
    return bank


def test_the_index_survives_a_saved_state_and_new_scores() -> None:
    plain, indexed = long_filled(EntroBank), long_filled(IndexedEntroBank)
    restored = IndexedEntroBank(50, generator=torch.Generator(), mature_age=40, forget_age=150)
    restored.set_extra_state(indexed.get_extra_state())
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(1)
    for bank in (plain, indexed, restored):
        bank.rescore(logits)
    for label, entropy in zip(rng.integers(0, 7, 400), rng.random(400), strict=True):
        for bank in (plain, indexed, restored):
            bank.add(torch.zeros(1, 1, 1, 1), np.array([label]), np.array([entropy]))
        assert contents(plain) == contents(indexed) == contents(restored)


def test_the_index_holds_what_the_bank_holds() -> None:
    bank = long_filled(IndexedEntroBank, 30_000)
    assert isinstance(bank, IndexedEntroBank)
    assert sum(map(len, bank._by_age.values())) == sum(map(len, bank._by_entropy.values())) == 50
    for label, count in enumerate(bank.counts.tolist()):
        assert len(bank._by_age.get(label, ())) == count
        assert label in bank._by_count[count] or not count
    bank.forget_before(bank.clock - 20)
    assert sum(map(len, bank._by_age.values())) == bank.size < 50


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.sampled_from([True] * 4 + [False])), min_size=20))
@settings(deadline=None, max_examples=50)
def test_while_labels_are_diverse_it_holds_the_latest_samples(stream: list[tuple[int, float, bool]]) -> None:
    bank = RecentEntroBank(5, generator=torch.Generator(), forget_age=20, mature_age=8)
    plain = EntroBank(5, generator=torch.Generator(), forget_age=20, mature_age=8)
    since = 0
    for label, entropy, bank.diverse in stream:
        since = since + 1 if bank.diverse else 0
        bank.add(torch.zeros(1, 1, 1, 1), np.array([label]), np.array([entropy]))
        oldest = int(bank.births[: bank.size].min())
        assert since < 5 or oldest == bank.clock - 4
    for label, entropy, _ in stream:  # its index is still right: it goes on as an EntroBank of the same samples
        if plain.clock == 0:
            plain.set_extra_state(bank.get_extra_state())
            bank.diverse = False
        for one in (bank, plain):
            one.add(torch.zeros(1, 1, 1, 1), np.array([label]), np.array([entropy]))
        assert bank.births.tolist() == plain.births.tolist()


def test_whether_labels_are_diverse_is_saved() -> None:
    bank, other = (RecentEntroBank(2, generator=torch.Generator()) for _ in range(2))
    bank.diverse = True
    bank.add(torch.zeros(1, 1, 1, 1), np.array([0]), np.array([0.5]))
    other.set_extra_state(bank.get_extra_state())
    assert other.diverse is True
