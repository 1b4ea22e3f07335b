import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.memory.entrobank import EntroBank
from resitta.memory.indexed_entrobank import IndexedEntroBank


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


def filled(kind: type[EntroBank], samples: int = 3000) -> EntroBank:
    rng = np.random.default_rng(0)
    bank = kind(50, generator=torch.Generator(), mature_age=40, forget_age=150)
    labels = np.repeat(rng.integers(0, 7, samples // 10), 10)
    bank.add(torch.zeros(samples, 1, 1, 1), labels, rng.random(samples).round(2))
    return bank


def test_the_index_survives_a_saved_state_and_new_scores() -> None:
    plain, indexed = filled(EntroBank), filled(IndexedEntroBank)
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


def test_memory_of_the_index_is_bounded() -> None:
    bank = filled(IndexedEntroBank, 30_000)
    assert isinstance(bank, IndexedEntroBank)
    classes = bank.index._classes.values()
    assert all(len(samples._by_age) <= 64 + 2 * 50 + 1 for samples in classes)
    heaps = [heap for samples in classes for heap in (samples._lowest, samples._highest)]
    levels = bank.index._levels
    heaps += [heap for level in levels for heap in (level._oldest, level._young, level._mature, level._highest)]
    assert all(len(heap._entries) + len(heap._fresh) <= 64 + 2 * 50 + 1 for heap in heaps)
    assert len(levels) <= 51
    assert all(len(level.arrived) <= 7 for level in levels)
