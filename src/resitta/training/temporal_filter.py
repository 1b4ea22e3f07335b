"""The filter behind a label prior in time: what outputs so far foretell about the class of the next image.

A network's output p(c) stands for p(image | c) up to the share b(c) that the network gives to class c in general, so a
prior π(c) turns it into the posterior π(c) p(c) / b(c), normalised. Experts propose the prior of the next sample from
those before it. They are weighted by their evidence Σ_c π(c) p(c) / b(c), which tells how well they foretell the
network's outputs, and have a say only while it is significantly above one. On a stream without temporal correlation
none has, and the logits stay as they are.

Arrays are indexed by sample (T), expert (E) or horizon (2), temperature (M) and class (K), in this order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Of single precision where there are many, of double precision for what is summed over many samples."""
Bools = NDArray[np.bool_]
STICKY = (0.5, 0.9, 0.99, 0.99)
"""Experts that expect the class of the last sample again, with these probabilities; the last one for long runs."""
HALF_LIVES = (8, 32)
"""Experts that expect each class as often as it came lately: the half-lives, in samples, of these frequencies."""
CHAINS, EXPERTS = len(STICKY), len(STICKY) + len(HALF_LIVES)
LONG = CHAINS - 1
FROM_LONG = EXPERTS - LONG
"""The expert for runs of a class that last so long that shares over a short horizon are those of that class."""
HORIZON = np.array([int(expert == LONG) for expert in range(EXPERTS)])
"""Which of two horizons an expert's shares are averaged over: the short one, or the long one."""
HANDICAP = np.float32(4.0) * HORIZON.astype(np.float32)[:, None]
"""Subtracted from the log evidence of an expert. Over the long horizon a network's bias is known less well."""
TRUST = np.array([*STICKY, *(0.9 for _ in HALF_LIVES)], np.float32)[:, None]
"""The weight of an expert's belief in its prior; the rest is the uniform distribution."""
RATE = np.array([*(1.0 for _ in STICKY), *(1 - 0.5 ** (1 / life) for life in HALF_LIVES)], np.float32)[:, None]
"""How far a belief moves to the posterior of a sample."""
TEMPERATURES = (0.5, 1.0, 2.0)
"""The logits are divided by one of these: by that at which the chains foretell the outputs best. Most networks are too
certain of images from other domains, and over many samples evidence that is too certain adds up."""
TRUSTS, RATES = (np.repeat(each, len(TEMPERATURES), axis=0) for each in (TRUST, RATE))
GAIN, OFTEN = TRUSTS * RATES, slice(CHAINS * len(TEMPERATURES), None)
KEPT = 1 - RATES[OFTEN]
"""The same for each expert and temperature; what of a posterior enters a belief times its trust; the frequencies, and
what remains of their last belief."""
USUAL = TEMPERATURES.index(2.0)
"""The temperature to begin with."""
MEMORY = 0.99
"""What is left of the log evidence that weights an expert, a sample later."""
BASE_SAMPLES = np.array([[10.0], [100.0]])
"""Over how many samples per class the network's general shares b(c) are averaged, for each horizon."""
NULL_SAMPLES = np.array([144.0, 1000.0])
"""Over how many samples the shares are averaged that significance is tested against: the bias of a network changes
with the domain and is no temporal correlation."""
NULL_PRIOR = 20
"""How many samples of the uniform distribution are added to these."""
BLOCK, BLOCKS, LEAST_BLOCKS = 25, 160, 4
"""Shares move, and evidence is tested, after each block of samples: its length, how many count, how many are needed."""
STANDARD_ERRORS, LEAST_EVIDENCE = 4.0, 0.03
"""An expert has a say while its mean log evidence lies this many standard errors, and this much, above zero."""
TINY = 1e-12
DECAY = MEMORY ** np.maximum(0, np.arange(BLOCK)[:, None] - np.arange(BLOCK)) * np.tri(BLOCK)
"""What is left at each sample of a block of the log evidence of each sample before."""
LEFT = MEMORY ** np.arange(1, BLOCK + 1)[:, None, None]
"""What is left at each sample of a block of the log evidence before the block."""
TOLERANCE = 0.02
"""A sample repeats the one before it if no logit, less the greatest, differs by more than this times 1 + its size."""


def outputs_of(logits: Floats) -> Floats:
    """The probabilities of T×K logits at each temperature, which is twice the one before: T×M×K.

    >>> outputs_of(np.log([[0.2, 0.8]]))[0, 1].round(3)
    array([0.2, 0.8], dtype=float32)
    """
    p = np.empty((len(logits), len(TEMPERATURES), logits.shape[-1]), np.float32)
    np.exp((logits - logits.max(axis=-1, keepdims=True)) / TEMPERATURES[-1], out=p[:, -1], casting="same_kind")
    for m in range(len(TEMPERATURES) - 1, 0, -1):
        np.square(p[:, m], out=p[:, m - 1])
    p /= p.sum(axis=-1, keepdims=True)
    return p


def smoothed(filtered: Floats, likelihoods: Floats) -> Floats:
    """Forward-backward smoothing of the sticky chains: their T×E×K filtered beliefs and likelihoods.

    >>> filtered = np.tile(np.float32([[[0.5, 0.5]], [[0.9, 0.1]]]), (1, CHAINS, 1))
    >>> smoothed(filtered, np.tile(np.float32([[[1.0, 1.0]], [[9.0, 1.0]]]), (1, CHAINS, 1)))[0, 2].round(2)
    array([0.9, 0.1], dtype=float32)
    """
    out, ahead, stay = filtered.copy(), np.ones_like(filtered[0]), TRUST[:CHAINS]
    for t in range(len(filtered) - 2, -1, -1):
        later = ahead * likelihoods[t + 1]
        ahead = stay * later + (1 - stay) * later.mean(axis=1, keepdims=True)
        ahead /= ahead.sum(axis=1, keepdims=True)
        out[t] *= ahead
    out /= out.sum(axis=-1, keepdims=True)
    return out


def mixed(outputs: Floats, posteriors: Floats, weights: Floats) -> Floats:
    """The log of the weighted mean of the experts' T×E×K posteriors and, with the weight 1, the T×K plain outputs.

    >>> posteriors = np.tile(np.float32([0.9, 0.1]), (1, EXPERTS, 1))
    >>> np.exp(mixed(np.float32([[0.5, 0.5]]), posteriors, np.full((1, EXPERTS), np.float32(0.5)))).round(2)
    array([[0.8, 0.2]], dtype=float32)
    """
    mixture: Floats = np.matmul(weights[:, None], posteriors)[:, 0]
    mixture += outputs
    mixture /= 1 + weights.sum(axis=1, keepdims=True)
    np.maximum(mixture, np.finfo(np.float32).tiny, out=mixture)
    np.log(mixture, out=mixture)
    return mixture


def weights_of(strength: Floats) -> Floats:
    """The weights of experts, …×E×M, from their log evidence; that of the plain network is 1.

    >>> weights_of(np.zeros((EXPERTS, 1), np.float32))[:, 0].round(3)
    array([1.   , 1.   , 1.   , 0.018, 1.   , 1.   ], dtype=float32)
    """
    lowered = strength - HANDICAP
    np.maximum(lowered, -30, out=lowered)
    np.minimum(lowered, 30, out=lowered)
    np.exp(lowered, out=lowered)
    return lowered


def is_significant(means: Floats) -> Bools:
    """Whether the mean log evidence of each expert is clearly above zero: a row for each block, a column per expert.

    >>> is_significant(np.array([[1.0, 0.1], [1.1, -0.1], [0.9, 0.2], [1.0, 0.0]]))
    array([ True, False])
    """
    count = len(means)
    if count < LEAST_BLOCKS:
        return np.zeros(means.shape[1:], dtype=bool)
    mean = means.sum(axis=0) / count
    error = np.sqrt(np.square(means - mean).sum(axis=0) / (count * (count - 1)))
    result: Bools = mean > np.maximum(STANDARD_ERRORS * error, LEAST_EVIDENCE)
    return result


def log_evidence(beliefs: Floats, p: Floats, null: Floats) -> tuple[Floats, Floats]:
    """By how much each expert foretells outputs better than null shares: T×E×M of T×E×M×K, T×M×K and 2×M×K.

    `beliefs` are times the trust in them. The second result is to be subtracted from the last experts' for what counts
    for significance. A network that begins to prefer a class, in fog say, looks like a class that has become frequent.
    So frequencies must also be better than the null shares with that of one class moved to its frequency, and the
    expert for long runs better than frequencies are over the long horizon.

    >>> belief, null = np.float32([[[[0.8, 0.1, 0.1]]]]), np.full((2, 1, 3), np.float32(1 / 3))
    >>> logs, less = log_evidence(TRUST[:, None] * belief, np.float32([[[0.9, 0.05, 0.05]]]), null)
    >>> print(logs[0, :, 0].round(2), less[0, :, 0].round(2))
    [0.47 0.73 0.78 0.78 0.73 0.73] [0.54 0.73 0.73]
    """
    samples, m, classes = p.shape
    ratios, rest = p[:, None] / null, 1 - TRUST
    found = np.empty((samples, EXPERTS + FROM_LONG, m), np.float32)
    logs, less = found[:, :EXPERTS], found[:, EXPERTS:]
    np.einsum("temk,tmk->tem", beliefs, ratios[:, 0], out=logs)
    np.einsum("temk,tmk->tem", beliefs[:, LONG:], ratios[:, 1], out=less)
    logs[:, LONG] = less[:, 0]
    logs += rest
    less += rest[LONG:]
    less[:, 0] = (1 + less[:, 1:].sum(axis=1)) / (1 + len(HALF_LIVES))
    trust, rest, places = TRUST[CHAINS:], rest[CHAINS:], np.arange(m) * classes
    moved = np.abs(beliefs[:, CHAINS:] - trust[..., None] * null[0]).argmax(axis=-1)
    general = null[0].ravel()[moved + places]
    sample = np.arange(samples)[:, None, None]
    ratio = ratios.ravel()[moved + (places + sample * (2 * m * classes))]
    expert = np.arange(CHAINS, EXPERTS)[:, None]
    share = beliefs.ravel()[moved + (places + (sample * EXPERTS + expert) * (m * classes))] + rest * general
    others = (1 - ratio * general) / (1 - general)
    less[:, 1:] = others + share * (ratio - others)
    np.log(found, out=found)
    return logs, less


@dataclass
class TemporalFilter:
    """What is remembered of the stream: a few numbers per class, for each temperature. Arrays are never written to.

    The arithmetic is that of the module's docstring.
    """

    beliefs: Floats
    """Each expert's, times the trust in it, E×M×K."""
    strength: Floats
    """The fading log evidence of each expert, E×M."""
    base: Floats
    """The shares b(c) over each horizon, 2×M×K, and how many samples are in them."""
    base_mass: Floats
    null: Floats
    null_mass: Floats
    blocks: Floats
    """The mean log evidence in the latest blocks, …×E×M."""
    speaks: Bools
    weighted: Floats
    """Sums over the block at hand: of the weights of samples, of weighted outputs, of outputs, of log evidence."""
    weight: Floats
    plain: Floats
    logs: Floats
    last: Floats
    """The logits of the last sample, less their maximum."""
    temperature: int = USUAL
    samples: int = 0
    corrected: int = 0
    relabelled: int = 0
    skipped: int = 0

    @classmethod
    def begin(cls, classes: int) -> "TemporalFilter":
        """The filter before the first sample."""
        m = len(TEMPERATURES)
        return cls(
            beliefs=np.broadcast_to(TRUST[..., None] / np.float32(classes), (EXPERTS, m, classes)),
            strength=np.zeros((EXPERTS, m)),
            base=np.full((2, m, classes), 1 / classes),
            base_mass=np.full((2, m), 2.0 * classes),
            null=np.full((2, m, classes), 1 / classes),
            null_mass=np.zeros(2),
            blocks=np.zeros((0, EXPERTS, m)),
            speaks=np.zeros((EXPERTS, m), dtype=bool),
            weighted=np.zeros((m, classes)),
            weight=np.zeros(m),
            plain=np.zeros((m, classes)),
            logs=np.zeros((EXPERTS, m)),
            last=np.ones(classes),  # of no logits
        )

    def copy(self) -> "TemporalFilter":
        """One that goes its own way."""
        return TemporalFilter(**vars(self))

    def are_new(self, logits: Floats) -> Bools:
        """Which of T×K logits differ from those before them, and remember the last: a repeated frame tells nothing.

        >>> state = TemporalFilter.begin(2)
        >>> state.are_new(np.array([[1.0, 3.0], [2.0, 4.0], [2.0, 3.0]])), state.are_new(np.array([[0.0, 1.0]]))
        (array([ True, False,  True]), array([False]))
        """
        now = logits - logits.max(axis=-1, keepdims=True)
        before = np.concatenate((self.last[None], now[:-1]))
        self.last = now[-1]
        with np.errstate(invalid="ignore"):  # the logits of masked classes are infinite
            near = np.abs(now - before) <= TOLERANCE * (1 - now)
        result: Bools = ~(near | (now == before)).all(axis=-1)
        return result

    @property
    def on(self) -> bool:
        """Whether any expert has a say at present."""
        return bool(self.speaks[:, self.temperature].any())

    def look(self, p: Floats) -> tuple[Floats, Floats]:
        """Return the experts' posteriors of T×M×K outputs, at the present temperature, and weights; learn nothing."""
        m, classes = self.temperature, p.shape[-1]
        prior = self.beliefs[:, m] + (1 - TRUST) / np.float32(classes)
        joint = prior * (p[:, None, m] / self.base[HORIZON, m])
        joint /= joint.sum(axis=-1, keepdims=True)
        weights = weights_of(self.strength.astype(np.float32))[:, m] * self.speaks[:, m]
        return joint.astype(np.float32), np.broadcast_to(weights, (len(p), EXPERTS))

    def take(self, p: Floats) -> tuple[Floats, Floats, Floats]:
        """Take in T×M×K outputs that lie in one block.

        Return, at the present temperature, the likelihoods, the experts' posteriors, and their weights.
        """
        samples, m = len(p), self.temperature
        likelihoods = p[:, None] / self.base.astype(np.float32)[HORIZON]
        beliefs, joints, evidence = self._filter(likelihoods)
        logs, less = log_evidence(beliefs, p, self.null.astype(np.float32))
        strength = (DECAY[:samples, :samples] @ logs.reshape(samples, -1)).reshape(logs.shape)
        strength += LEFT[:samples] * self.strength
        earlier = weights_of(strength - logs) * self.speaks
        foretold = (1 + (earlier * evidence).sum(axis=1)) / (1 + earlier.sum(axis=1))
        weights = (weights_of(strength) * self.speaks)[..., m].astype(np.float32)
        posteriors = joints[:, :, m] / evidence[:, :, m, None]
        self.strength = strength[-1]
        self._remember(p, foretold, logs, less)
        return likelihoods[:, :, m], posteriors, weights

    def _filter(self, likelihoods: Floats) -> tuple[Floats, Floats, Floats]:
        """Each expert's belief before each sample, its posterior before it is normalised, and its evidence.

        This is the one loop over samples. A belief, here times the trust s in it, moves to the posterior q by the rate
        r: (1-r) belief + r s q.
        """
        samples, classes = len(likelihoods), likelihoods.shape[-1]
        shape = samples, TRUSTS.size, classes  # numpy is faster with fewer dimensions
        beliefs, joints = np.empty((samples + 1, *shape[1:]), np.float32), np.empty(shape, np.float32)
        evidence, rest = np.empty((samples, TRUSTS.size, 1), np.float32), (1 - TRUSTS) / np.float32(classes)
        ones, scale, old = np.ones((classes, 1), np.float32), np.empty_like(GAIN), np.empty_like(beliefs[0, OFTEN])
        beliefs[0] = self.beliefs.reshape(shape[1:])
        before, after = beliefs[:-1], beliefs[1:]
        steps = before, likelihoods.reshape(shape), joints, evidence, after, before[:, OFTEN], after[:, OFTEN]
        for belief, likelihood, joint, total, following, last, now in zip(*steps, strict=True):
            np.add(belief, rest, joint)
            np.multiply(joint, likelihood, joint)
            np.dot(joint, ones, total)
            np.divide(GAIN, total, scale)
            np.multiply(joint, scale, following)
            np.multiply(KEPT, last, old)
            np.add(now, old, now)
        self.beliefs = beliefs[-1].reshape(self.beliefs.shape).copy()
        every = likelihoods.shape
        return before.reshape(every), joints.reshape(every), evidence.reshape(every[:-1])

    def _remember(self, p: Floats, foretold: Floats, logs: Floats, less: Floats) -> None:
        """Add the samples to the sums of the block. What was foretold repeats what is known, and weighs less in b."""
        weight = np.minimum(np.maximum(1 / np.sqrt(foretold), 0.1), 10.0)
        self.weighted = self.weighted + np.einsum("tm,tmk->mk", weight, p)
        self.weight = self.weight + weight.sum(axis=0)
        self.plain = self.plain + p.sum(axis=0)
        strict = self.logs + logs.sum(axis=0)
        strict[LONG:] -= less.sum(axis=0)
        self.logs = strict
        self.samples += len(p)
        if self.samples % BLOCK == 0:
            self._close_block(p.shape[-1])

    def _close_block(self, classes: int) -> None:
        """Move the shares by the sums of a block, and decide who speaks, and at which temperature."""
        mass, n = self.base_mass + self.weight, self.null_mass
        moved = self.base_mass[..., None] * self.base + self.weighted
        self.base = np.maximum(moved / mass[..., None], TINY)
        self.base_mass = np.minimum(mass, BASE_SAMPLES * classes)
        uniform = NULL_PRIOR / classes
        total = (n + NULL_PRIOR)[:, None, None] * self.null - uniform
        kept = np.minimum(n, NULL_SAMPLES) / np.maximum(n, 1.0)
        self.null_mass = kept * n + BLOCK
        total = kept[:, None, None] * total + self.plain + uniform
        self.null = total / (self.null_mass + NULL_PRIOR)[:, None, None]
        self.blocks = np.concatenate((self.blocks, self.logs[None] / BLOCK))[-BLOCKS:]
        self.speaks = is_significant(self.blocks)
        self.temperature = int(self.blocks[:, :LONG].sum(axis=0).max(axis=0).argmax())
        m = len(TEMPERATURES)
        self.weighted, self.weight, self.plain = np.zeros((m, classes)), np.zeros(m), np.zeros((m, classes))
        self.logs = np.zeros((EXPERTS, m))
