import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.memory.cstu import CSTU

PAUSE = 40
Event = tuple[int, float] | None
SAMPLES = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]))
EVENTS = st.lists(st.one_of(SAMPLES, SAMPLES, SAMPLES, st.none()), min_size=20, max_size=50)


@dataclass
class Sample:
    number: int
    entropy: float
    age: int = 0


class LiteralCSTU:
    """RoTTA's memory as its paper describes it: a list of samples for each class, oldest first."""

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity = capacity
        self.lists: list[list[Sample]] = [[] for _ in range(classes)]

    def score(self, age: int, entropy: float) -> float:
        return 1 / (1 + math.exp(-age / self.capacity)) + entropy / math.log(len(self.lists))

    def grow_older(self, by: int = 1) -> None:
        for sample in (sample for samples in self.lists for sample in samples):
            sample.age += by

    def add(self, number: int, label: int, entropy: float) -> None:
        self.grow_older()
        if self.make_room(label, self.score(0, entropy)):
            self.lists[label].append(Sample(number, entropy))

    def make_room(self, label: int, newcomer: float) -> bool:
        if len(self.lists[label]) >= self.capacity / len(self.lists):
            return self.remove_from([label], newcomer)
        if sum(map(len, self.lists)) < self.capacity:
            return True
        most = max(map(len, self.lists))
        return self.remove_from([c for c, samples in enumerate(self.lists) if len(samples) == most], newcomer)

    def remove_from(self, labels: list[int], newcomer: float) -> bool:
        highest, place = -math.inf, (0, 0)
        for label in labels:
            for index, sample in enumerate(self.lists[label]):
                if self.score(sample.age, sample.entropy) >= highest:  # a tie goes to the last
                    highest, place = self.score(sample.age, sample.entropy), (label, index)
        if highest > newcomer:
            self.lists[place[0]].pop(place[1])
            return True
        return False


def offer(bank: CSTU, number: int, label: int, entropy: float, times: int = 1) -> None:
    images = torch.full((times, 1, 1, 1), float(number))
    bank.add(images, np.full(times, label), np.full(times, entropy))


def numbers(bank: CSTU) -> list[int]:
    return [int(number) for number in bank.samples.flatten().tolist()]


@settings(max_examples=120, deadline=None)
@given(events=EVENTS, capacity=st.integers(1, 9), classes=st.integers(4, 6))
def test_every_decision_is_that_of_the_literal_memory(events: list[Event], capacity: int, classes: int) -> None:
    """A pause makes all stored samples so old that timeliness saturates and scores tie."""
    literal, bank = LiteralCSTU(capacity, classes), CSTU(capacity)
    bank.classes = classes
    for number, event in enumerate(events):
        if event is None:
            literal.grow_older(PAUSE * capacity)
            offer(bank, -1, 0, math.nan, times=PAUSE * capacity)
        else:
            literal.add(number, *event)
            offer(bank, number, *event)
        stored = sorted(sample.number for samples in literal.lists for sample in samples)
        assert sorted(numbers(bank)) == stored
        assert bank.counts.tolist() == [len(samples) for samples in literal.lists]


def test_a_class_at_its_quota_replaces_only_within_itself() -> None:
    bank = CSTU(4)
    bank.classes = 2
    for number, (label, entropy) in enumerate([(0, 0.1), (0, 0.5), (1, 0.6), (0, 0.2)]):
        offer(bank, number, label, entropy)
    assert sorted(numbers(bank)) == [0, 2, 3]  # room was left, yet class 0 had its two places


def test_a_sample_no_worse_than_the_newcomer_stays() -> None:
    bank = CSTU(1)
    bank.classes = 2
    offer(bank, 0, 0, 0.0)
    offer(bank, 1, 0, math.log(2))
    assert numbers(bank) == [0]
    offer(bank, 2, 1, 0.0)
    assert numbers(bank) == [2]  # older at equal entropy
    offer(bank, -1, 0, math.nan, times=PAUSE)
    offer(bank, 3, 1, math.log(2) / 2)
    assert numbers(bank) == [2]  # 1 + 0 against 1/2 + 1/2


def test_ties_go_to_the_last() -> None:
    bank = CSTU(4)
    bank.classes = 2
    offer(bank, 0, 0, 0.5)
    offer(bank, 1, 0, 0.5)
    offer(bank, -1, 0, math.nan, times=4 * PAUSE)
    offer(bank, 2, 0, 0.0)
    assert sorted(numbers(bank)) == [0, 2]  # of one class the younger leaves
    bank = CSTU(2)
    bank.classes = 4
    offer(bank, 0, 3, 0.5)
    offer(bank, 1, 1, 0.5)
    offer(bank, -1, 0, math.nan, times=2 * PAUSE)
    offer(bank, 2, 0, 0.0)
    assert sorted(numbers(bank)) == [1, 2]  # of two classes the higher loses one
