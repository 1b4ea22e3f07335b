"""The filter against one that takes a sample at a time, in plain Python."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.training.temporal_filter import BLOCK, TemporalFilter, is_significant, mixed, outputs_of


def outputs(samples: int, classes: int, length: int, certainty: float) -> np.ndarray:
    """Logits of classes that come in runs."""
    rng = np.random.default_rng(7)
    labels = np.repeat(rng.integers(0, classes, -(-samples // length)), length)[:samples]
    logits = rng.normal(size=(samples, classes))
    logits[np.arange(samples), labels] += 2
    return 3 * certainty * logits


class Literal:
    """The filter, sample by sample, in plain Python."""

    def __init__(self, classes: int) -> None:
        self.each = [AtOneTemperature(classes, temperature) for temperature in (0.5, 1.0, 2.0)]
        self.chosen = self.each[2]

    def __call__(self, logits: list[float]) -> list[float] | None:
        answers = {id(one): one(logits) for one in self.each}
        answer = answers[id(self.chosen)]
        if not self.chosen.outputs:  # a block has ended
            self.chosen = max(self.each, key=AtOneTemperature.foresight)
        return answer


class AtOneTemperature:
    def __init__(self, classes: int, temperature: float) -> None:
        self.k, self.temperature = classes, temperature
        self.stay = [0.5, 0.9, 0.99, 0.99]
        self.rates = [1 - 0.5 ** (1 / 8), 1 - 0.5 ** (1 / 32)]
        self.beliefs = [[1 / classes] * classes for _ in range(6)]
        self.strength = [0.0] * 6
        self.bases, self.base_mass = [[1 / classes] * classes for _ in range(2)], [2.0 * classes] * 2
        self.null_mean, self.null_mass = [[0.0] * classes for _ in range(2)], [0.0] * 2
        self.blocks: list[list[float]] = []
        self.speaks = [False] * 6
        self.outputs: list[list[float]] = []
        self.importance: list[float] = []
        self.logs: list[list[float]] = []

    def null(self, horizon: int) -> list[float]:
        mass = self.null_mass[horizon]
        return [(mass * m + 20 / self.k) / (mass + 20) for m in self.null_mean[horizon]]

    def mixture_weights(self, strength: list[float]) -> list[float]:
        lowered = [s - 4 if e == 3 else s for e, s in enumerate(strength)]
        raw = [math.exp(min(max(s, -30.0), 30.0)) if self.speaks[e] else 0.0 for e, s in enumerate(lowered)]
        return [r / (1 + sum(raw)) for r in raw]

    def __call__(self, logits: list[float]) -> list[float] | None:
        raised = [math.exp(z / self.temperature) for z in logits]
        p = [r / sum(raised) for r in raised]
        trusts = [*self.stay, 0.9, 0.9]
        posteriors, evidences, ratios = [], [], []
        for e, (belief, trust) in enumerate(zip(self.beliefs, trusts, strict=True)):
            base, null = self.bases[e == 3], self.null(e == 3)
            prior = [trust * b + (1 - trust) / self.k for b in belief]
            joint = [prior[c] * p[c] / base[c] for c in range(self.k)]
            evidences.append(sum(joint))
            posteriors.append([j / sum(joint) for j in joint])
            ratios.append(self.foretold(belief, trust, null, p))
        plain = list(ratios)
        over_long = [self.foretold(belief, 0.9, self.null(1), p) for belief in self.beliefs[4:]]
        ratios[3] /= (1 + sum(over_long)) / 3
        for e in (4, 5):
            ratios[e] /= self.one_class_moved(self.beliefs[e], self.null(0), p)
        before = [0.99 * s for s in self.strength]
        self.strength = [b + math.log(ratio) for b, ratio in zip(before, plain, strict=True)]
        earlier = self.mixture_weights(before)
        foretold = 1 - sum(earlier) + sum(w * e for w, e in zip(earlier, evidences, strict=True))
        weights = self.mixture_weights(self.strength)
        mixed = [sum(w * q[c] for w, q in zip(weights, posteriors, strict=True)) for c in range(self.k)]
        answer = [m + (1 - sum(weights)) * p[c] for c, m in enumerate(mixed)] if any(self.speaks) else None
        for e, posterior in enumerate(posteriors):
            rate = 1.0 if e < 4 else self.rates[e - 4]
            self.beliefs[e] = [b + rate * (q - b) for b, q in zip(self.beliefs[e], posterior, strict=True)]
        self.outputs.append(p)
        self.importance.append(min(max(foretold**-0.5, 0.1), 10.0))
        self.logs.append([math.log(ratio) for ratio in ratios])
        if len(self.outputs) == 25:
            self.close()
        return answer

    def foretold(self, belief: list[float], trust: float, null: list[float], p: list[float]) -> float:
        return sum((trust * belief[c] + (1 - trust) * null[c]) * p[c] / null[c] for c in range(self.k))

    def foresight(self) -> float:
        """The mean log evidence of the best of the chains over the short horizon."""
        return max(sum(block[e] for block in self.blocks) / len(self.blocks) for e in range(3))

    def one_class_moved(self, belief: list[float], null: list[float], p: list[float]) -> float:
        moved = max(range(self.k), key=lambda c: abs(belief[c] - null[c]))
        share = 0.9 * belief[moved] + 0.1 * null[moved]
        shares = [share if c == moved else null[c] * (1 - share) / (1 - null[moved]) for c in range(self.k)]
        return sum(shares[c] * p[c] / null[c] for c in range(self.k))

    def close(self) -> None:
        weighted = [sum(w * p[c] for w, p in zip(self.importance, self.outputs, strict=True)) for c in range(self.k)]
        sums = [sum(p[c] for p in self.outputs) for c in range(self.k)]
        for horizon, (samples, null_samples) in enumerate(((10.0, 144), (100.0, 1000))):
            mass = self.base_mass[horizon]
            total = mass + sum(self.importance)
            self.bases[horizon] = [(mass * b + w) / total for b, w in zip(self.bases[horizon], weighted, strict=True)]
            self.base_mass[horizon] = min(total, samples * self.k)
            old = min(self.null_mass[horizon], null_samples)
            self.null_mean[horizon] = [
                (old * m + s) / (old + 25) for m, s in zip(self.null_mean[horizon], sums, strict=True)
            ]
            self.null_mass[horizon] = old + 25
        self.blocks = [*self.blocks, [sum(row[e] for row in self.logs) / 25 for e in range(6)]][-160:]
        n = len(self.blocks)
        for e in range(6):
            values = [block[e] for block in self.blocks]
            mean = sum(values) / n
            spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.inf
            self.speaks[e] = n >= 4 and mean > max(4 * spread, 0.03)
        self.outputs, self.importance, self.logs = [], [], []


def compare(logits: np.ndarray, sizes: Iterable[int]) -> int:
    """Compare the answers to logits that come in batches with those of the literal filter, and count them."""
    state, literal, start, answered = TemporalFilter.begin(logits.shape[1]), Literal(logits.shape[1]), 0, 0
    for size in sizes:
        rows = logits[start : start + min(size, BLOCK - state.samples % BLOCK)]
        start += len(rows)
        if not len(rows):
            break
        p, on = outputs_of(rows), state.on
        plain = p[:, state.temperature]
        _, posteriors, weights = state.take(p)
        for row, found in zip(rows, mixed(plain, posteriors, weights), strict=True):
            expected = literal(row.tolist())
            assert (expected is not None) == on
            if expected is not None:
                answered += 1
                np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4, atol=1e-7)
    return answered


@pytest.mark.parametrize(("classes", "length", "certainty"), [(3, 40, 1.0), (10, 12, 1.0), (10, 12, 0.4)])
def test_agrees_with_a_filter_in_plain_python(classes: int, length: int, certainty: float) -> None:
    assert compare(outputs(700, classes, length, certainty), itertools.repeat(BLOCK // 5)) > 300


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    classes=st.integers(2, 12),
    length=st.integers(1, 60),
    certainty=st.floats(0.1, 3),
    bias=st.floats(0, 4),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=8),
)
def test_agrees_with_it_on_any_stream(
    classes: int, length: int, certainty: float, bias: float, sizes: list[int]
) -> None:
    logits = outputs(400, classes, length, certainty)
    logits[200:, 0] += bias
    compare(logits, itertools.cycle(sizes))


def test_to_look_teaches_nothing_and_answers_what_the_next_sample_would_get() -> None:
    state = TemporalFilter.begin(3)
    for rows in np.split(outputs(500, 3, 40, 1.0), 20):
        state.take(outputs_of(rows))
    p, before = outputs_of(np.array([[1.0, 0.5, 0.0]])), state.copy()
    posteriors, _ = state.look(p)
    assert vars(state) == vars(before)  # the very same arrays
    np.testing.assert_allclose(posteriors, state.take(p)[1], rtol=1e-5)


def test_few_blocks_are_not_significant() -> None:
    assert not is_significant(np.full((3, 2), 5.0)).any()
    assert is_significant(np.full((4, 2), 5.0)).all()
