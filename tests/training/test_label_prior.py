import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.training.label_prior import TemporalPrior


def stream(labels: Tensor, *, sharpness: float = 2.0, bias: float = 0.0, seed: int = 0) -> Tensor:
    """Logits of a network that is too certain, as networks are on corrupted images; with a bias towards class 0."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(labels.max()) + 1
    noise = torch.randn((len(labels), classes), generator=generator, dtype=torch.float64)
    logits = 1.5 * sharpness * (sharpness * torch.nn.functional.one_hot(labels, classes) + noise)
    logits[:, 0] += bias
    return logits


def runs(samples: int, classes: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(classes, (-(-samples // length),), generator=generator).repeat_interleave(length)[:samples]


def shuffled(samples: int, classes: int) -> Tensor:
    return torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(7))


def error(logits: Tensor, labels: Tensor, skip: int = 0) -> float:
    return float((logits.argmax(1) != labels)[skip:].double().mean())


def correct(logits: Tensor, batch: int = 64, **options: Any) -> tuple[Tensor, TemporalPrior]:
    prior = TemporalPrior(**options)
    return torch.cat([prior(part) for part in torch.split(logits, batch)]), prior


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


@pytest.mark.parametrize(("classes", "length", "certainty"), [(3, 40, 1.0), (10, 12, 1.0), (10, 12, 0.4)])
def test_agrees_with_a_filter_in_plain_python(classes: int, length: int, certainty: float) -> None:
    logits = certainty * stream(runs(700, classes, length))
    found, prior = correct(logits, batch=33)
    literal = Literal(classes)
    for row, answer in zip(logits, found, strict=True):
        expected = literal(row.tolist())
        wanted = row if expected is None else torch.tensor(expected, dtype=torch.float64).log()
        torch.testing.assert_close(answer, wanted, rtol=1e-9, atol=1e-9)
    assert prior.stats.corrected > 300


@pytest.mark.parametrize("length", [3, 10, 100, 300, 800])
def test_runs_of_a_class_lower_the_error(length: int) -> None:
    labels = runs(4000 if length < 500 else 8000, 10, length)
    logits = stream(labels)
    found, _ = correct(logits)
    assert error(found, labels, 200) < {3: 0.85, 800: 0.8}.get(length, 0.5) * error(logits, labels, 200)


@pytest.mark.parametrize("bias", [0.0, 3.0, 6.0])
@pytest.mark.parametrize("classes", [5, 100])
def test_a_shuffled_stream_is_left_as_it_is_also_by_a_biased_network(classes: int, bias: float) -> None:
    logits = stream(shuffled(3000, classes), bias=bias)
    found, prior = correct(logits)
    assert torch.equal(found, logits)
    assert not prior.on
    assert prior.stats.corrected == 0


@pytest.mark.parametrize("period", [200, 500, 1000])
@pytest.mark.parametrize("bias", [1.5, 3.0])
def test_a_bias_that_changes_is_not_mistaken_for_classes_that_come_in_runs(period: int, bias: float) -> None:
    labels = shuffled(6000, 10)
    logits = stream(labels)
    for start in range(0, 6000, period):
        logits[start : start + period, start // period % 10] += bias
    found, _ = correct(logits)
    assert error(found, labels) <= error(logits, labels) + 0.005


def test_pairs_among_a_thousand_classes() -> None:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
    labels = order.repeat_interleave(2)
    logits = stream(labels, sharpness=4.5)
    found, _ = correct(logits)
    assert error(found, labels, 200) < 0.93 * error(logits, labels, 200)


def test_it_ends_when_the_stream_is_shuffled() -> None:
    labels = torch.cat([runs(2000, 10, 50), shuffled(3000, 10)])
    logits = stream(labels)
    found, prior = correct(logits)
    assert not prior.on
    assert error(found[2000:], labels[2000:], 1000) <= error(logits[2000:], labels[2000:], 1000) + 0.005


@pytest.mark.parametrize("batch", [1, 7, 25, 200])
def test_batches_make_no_difference(batch: int) -> None:
    logits = stream(runs(600, 10, 20))
    torch.testing.assert_close(correct(logits, batch)[0], correct(logits, 64)[0], rtol=1e-9, atol=1e-9)


def test_it_is_causal_and_with_lookahead_only_within_a_batch() -> None:
    logits = stream(runs(640, 10, 20))
    other = logits.clone()
    other[600:] = other[600:].flip(1)
    for lookahead, same in (("none", 600), ("batch", 576)):
        found, changed = (correct(each, 64, lookahead=lookahead)[0] for each in (logits, other))
        assert torch.equal(found[:same], changed[:same])


def test_lookahead_helps() -> None:
    labels = runs(3000, 10, 30)
    logits = stream(labels, sharpness=1.0)
    causal, ahead = (correct(logits, 64, lookahead=lookahead)[0] for lookahead in ("none", "batch"))
    assert error(ahead, labels) < 0.85 * error(causal, labels)


def test_answers_are_log_probabilities_of_the_logits_type() -> None:
    logits = stream(runs(600, 10, 20)).float()
    found, prior = correct(logits)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[-1].exp().sum().item(), 1.0)
    assert prior.stats.relabelled > 0


def test_peeking_answers_the_same_and_learns_nothing() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    before = prior.get_extra_state()
    peeked = prior.peek(logits[:50])
    after = prior.get_extra_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert torch.equal(prior(logits[:50]), peeked)


def test_rows_that_are_not_finite_are_passed_through() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    _, other = correct(logits)
    broken = logits[:3].clone()
    broken[1] = torch.nan
    found = prior(broken)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], other(logits[[0, 2]]))


@pytest.mark.parametrize("certainty", [0.4, 0.7, 1.0, 1.4])
def test_how_certain_the_network_is_of_itself_makes_little_difference(certainty: float) -> None:
    labels = runs(4000, 10, 10)
    logits = stream(labels)
    usual, found = (correct(scale * logits)[0] for scale in (1.0, certainty))
    assert error(found, labels, 500) < error(usual, labels, 500) + 0.03
    assert error(found, labels, 500) < 0.5 * error(logits, labels, 500)


def test_masked_classes_stay_impossible() -> None:
    logits = stream(runs(600, 10, 20))
    logits[:, 4] = -torch.inf
    found, _ = correct(logits)
    assert (found.argmax(1) != 4).all()
    assert not found.isnan().any()


def test_a_state_continues_and_a_wrong_one_is_refused() -> None:
    logits = stream(runs(600, 10, 20))
    _, prior = correct(logits)
    other = TemporalPrior()
    state = prior.get_extra_state()
    other.set_extra_state(state)
    assert torch.equal(prior(logits), other(logits))
    for broken in ({**state, "base": state["base"][:, :, :4]}, {**state, "strength": state["strength"] * torch.nan}):
        with pytest.raises(BadState, match="label prior must be finite"):
            other.set_extra_state(broken)


def test_a_frozen_camera_does_not_lock_it_in() -> None:
    labels = runs(2000, 10, 40)
    logits = stream(labels)
    frozen = torch.cat([logits[:1000], logits[1000:1001].expand(3000, -1), logits[1000:]])
    found = correct(frozen)[0][4000:]
    assert error(found, labels[1000:], 150) < error(logits[1000:], labels[1000:], 150)
    assert error(found[:150], labels[1000:1150]) <= error(logits[1000:1150], labels[1000:1150]) + 0.12
