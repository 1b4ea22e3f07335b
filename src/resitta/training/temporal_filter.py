"""The filter behind a label prior in time: what outputs so far foretell about the class of the next image.

A network's output p(c) stands for p(image | c) up to the share b(c) that the network gives to class c in general, so a
prior π(c) turns it into the posterior π(c) p(c) / b(c), normalised. Experts propose the prior of the next sample from
those before it. They are weighted by their evidence Σ_c π(c) p(c) / b(c), which tells how well they foretell the
network's outputs, and have a say only while it is significantly above one. On a stream without temporal correlation
none has, and the logits stay as they are.
"""

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STICKY = (0.5, 0.9, 0.99, 0.99)
"""Experts that expect the class of the last sample again, with these probabilities; the last one for long runs."""
HALF_LIVES = (8, 32)
"""Experts that expect each class as often as it came lately: the half-lives, in samples, of these frequencies."""
CHAINS, EXPERTS = len(STICKY), len(STICKY) + len(HALF_LIVES)
LONG = CHAINS - 1
"""The expert for runs of a class that last so long that shares over a short horizon are those of that class."""
HORIZON = np.array([int(expert == LONG) for expert in range(EXPERTS)])
"""Which of two horizons an expert's shares are averaged over: the short one, or the long one."""
HANDICAP = 4.0 * HORIZON
"""Subtracted from the log evidence of an expert. Over the long horizon a network's bias is known less well."""
TRUST = np.array([*STICKY, *(0.9 for _ in HALF_LIVES)])[:, None]
"""The weight of an expert's belief in its prior; the rest is the uniform distribution."""
RATE = np.array([*(1.0 for _ in STICKY), *(1 - 0.5 ** (1 / life) for life in HALF_LIVES)])[:, None]
"""How far a belief moves to the posterior of a sample."""

TEMPERATURES = (0.5, 1.0, 2.0)
"""The logits are divided by one of these: by that at which the chains foretell the outputs best. Most networks are too
certain of images from other domains, and over many samples evidence that is too certain adds up."""
USUAL = TEMPERATURES.index(2.0)
"""The temperature to begin with."""
MEMORY = 0.99
"""What is left of the log evidence that weights an expert, a sample later."""
BASE_SAMPLES = np.array([10.0, 100.0])
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


def smoothed(filtered: Floats, likelihoods: Floats) -> Floats:
    """Forward-backward smoothing of the sticky chains: their T×E×K filtered beliefs and likelihoods.

    >>> filtered = np.tile([[[0.5, 0.5]], [[0.9, 0.1]]], (1, CHAINS, 1))
    >>> smoothed(filtered, np.tile([[[1.0, 1.0]], [[9.0, 1.0]]], (1, CHAINS, 1)))[0, 2].round(2)
    array([0.9, 0.1])
    """
    out, ahead, stay = filtered.copy(), np.ones_like(filtered[0]), TRUST[:CHAINS]
    for t in range(len(filtered) - 2, -1, -1):
        later = ahead * likelihoods[t + 1]
        ahead = stay * later + (1 - stay) * later.mean(axis=1, keepdims=True)
        ahead /= ahead.sum(axis=1, keepdims=True)
        out[t] *= ahead
    result: Floats = out / out.sum(axis=-1, keepdims=True)
    return result


def mixed(outputs: Floats, posteriors: Floats, weights: Floats) -> Floats:
    """The log of the weighted mean of the experts' posteriors and the plain outputs; NaN where no expert has a weight.

    >>> weights = np.eye(1, EXPERTS + 1)  # the first expert's alone
    >>> np.exp(mixed(np.array([[0.5, 0.5]]), np.tile([0.9, 0.1], (1, EXPERTS, 1)), weights)).round(2)
    array([[0.9, 0.1]])
    """
    speaks: NDArray[np.bool_] = np.asarray(weights[:, :-1].any(axis=1, keepdims=True))
    if not speaks.any():
        return np.full_like(outputs, np.nan)
    mixture = np.einsum("te,tek->tk", weights[:, :-1], posteriors) + weights[:, -1:] * outputs
    result: Floats = np.where(speaks, np.log(np.maximum(mixture, np.finfo(np.float32).tiny)), np.nan)
    return result


def is_significant(means: Floats) -> NDArray[np.bool_]:
    """Whether the mean log evidence of each expert is clearly above zero: a row for each block, a column per expert.

    >>> is_significant(np.array([[1.0, 0.1], [1.1, -0.1], [0.9, 0.2], [1.0, 0.0]]))
    array([ True, False])
    """
    if len(means) < LEAST_BLOCKS:
        return np.zeros(means.shape[1:], dtype=bool)
    mean, error = means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))
    result: NDArray[np.bool_] = mean > np.maximum(STANDARD_ERRORS * error, LEAST_EVIDENCE)
    return result


def log_evidence(beliefs: Floats, p: Floats, null: Floats) -> tuple[Floats, Floats]:
    """By how much each expert foretells outputs better than null shares: …×E×K beliefs, …×K outputs, …×2×K shares.

    The second result is what counts for significance. A network that begins to prefer a class, in fog say, looks like
    a class that has become frequent. So frequencies must also be better than the null shares with that of one class
    moved to its frequency, and the expert for long runs better than frequencies are over the long horizon.

    >>> beliefs, null = np.tile([0.8, 0.1, 0.1], (1, EXPERTS, 1)), np.full((2, 3), 1 / 3)
    >>> for logs in log_evidence(beliefs, np.array([[0.9, 0.05, 0.05]]), null):
    ...     print(logs.round(2) + 0)
    [[0.47 0.73 0.78 0.78 0.73 0.73]]
    [[0.47 0.73 0.78 0.24 0.   0.  ]]
    """
    trust, frequencies = TRUST[:, 0], beliefs[..., CHAINS:, :]
    short, long = (p / null[..., horizon, :] for horizon in (0, 1))
    found = np.einsum("...ek,...k->...e", beliefs, short)
    found[..., LONG] = np.einsum("...k,...k->...", beliefs[..., LONG, :], long)
    foretold = trust * found + 1 - trust
    over_long = trust[CHAINS:] * np.einsum("...ek,...k->...e", frequencies, long) + 1 - trust[CHAINS:]
    plain = np.log(foretold)
    foretold[..., LONG] /= (1 + over_long.sum(axis=-1)) / (1 + len(HALF_LIVES))
    shares = np.broadcast_to(null[..., :1, :], frequencies.shape)
    moved = np.abs(frequencies - shares).argmax(axis=-1)[..., None]
    own = np.take_along_axis(np.broadcast_to(p[..., None, :], frequencies.shape), moved, axis=-1)[..., 0]
    general = np.take_along_axis(shares, moved, axis=-1)[..., 0]
    share = np.take_along_axis(frequencies, moved, axis=-1)[..., 0]
    share = trust[CHAINS:] * share + (1 - trust[CHAINS:]) * general
    foretold[..., CHAINS:] /= share * own / general + (1 - share) / (1 - general) * (1 - own)
    return plain, np.log(foretold)


@dataclass
class TemporalFilter:
    """What is remembered of the stream: a few numbers per class, for each of the M temperatures.

    The arithmetic is that of the module's docstring.
    """

    beliefs: Floats
    """M×E×K."""
    strength: Floats
    """The fading log evidence of each expert, M×E."""
    base: Floats
    """The shares b(c) over each horizon, M×2×K, and how many samples are in them."""
    base_mass: Floats
    null: Floats
    null_mass: Floats
    blocks: Floats
    """The mean log evidence in the latest blocks, …×M×E."""
    speaks: NDArray[np.bool_]
    weighted: Floats
    """Sums over the block at hand: of the weights of samples, of weighted outputs, of outputs, of log evidence."""
    weight: Floats
    plain: Floats
    logs: Floats
    temperature: int = USUAL
    samples: int = 0
    corrected: int = 0
    relabelled: int = 0

    @classmethod
    def begin(cls, classes: int) -> "TemporalFilter":
        """The filter before the first sample."""
        uniform, m = np.full(classes, 1 / classes), len(TEMPERATURES)
        return cls(
            beliefs=np.tile(uniform, (m, EXPERTS, 1)),
            strength=np.zeros((m, EXPERTS)),
            base=np.tile(uniform, (m, 2, 1)),
            base_mass=np.full((m, 2), 2.0 * classes),
            null=np.tile(uniform, (m, 2, 1)),
            null_mass=np.zeros(2),
            blocks=np.zeros((0, m, EXPERTS)),
            speaks=np.zeros((m, EXPERTS), dtype=bool),
            weighted=np.zeros((m, classes)),
            weight=np.zeros(m),
            plain=np.zeros((m, classes)),
            logs=np.zeros((m, EXPERTS)),
        )

    def copy(self) -> "TemporalFilter":
        """One that shares nothing with this one."""
        return TemporalFilter(**copy.deepcopy(vars(self)))

    def take(self, p: Floats) -> tuple[Floats, Floats, Floats]:
        """Take in T×M×K outputs that lie in one block.

        Return, at the present temperature, the likelihoods, the experts' posteriors, and their weights.
        """
        likelihoods = p[:, :, None] / self.base[:, HORIZON]
        before, posteriors, evidence = self._beliefs(likelihoods)
        logs, strict_logs = log_evidence(before, p, self.null)
        strength = np.tensordot(DECAY[: len(p), : len(p)], logs, axes=1)
        strength += MEMORY ** np.arange(1, len(p) + 1)[:, None, None] * self.strength
        weights, m = self.weights(strength), self.temperature
        earlier = self.weights(strength - logs)
        foretold = (earlier[..., :-1] * evidence).sum(axis=-1) + earlier[..., -1]
        self.strength = strength[-1]
        self._remember(p, foretold, strict_logs)
        return likelihoods[:, m], posteriors[:, m], weights[:, m]

    def _beliefs(self, likelihoods: Floats) -> tuple[Floats, Floats, Floats]:
        """Each expert's belief before each sample, its posterior, and its evidence: the one loop over samples."""
        before, posteriors = np.empty((2, *likelihoods.shape))
        evidence = np.empty(likelihoods.shape[:-1])
        belief, rest = self.beliefs, (1 - TRUST) / likelihoods.shape[-1]
        for t, likelihood in enumerate(likelihoods):
            before[t] = belief
            joint = np.multiply(TRUST, belief, out=posteriors[t])
            joint += rest
            joint *= likelihood
            evidence[t] = total = joint.sum(axis=-1)
            joint /= total[..., None]
            belief = belief + RATE * (joint - belief)
        self.beliefs = belief
        return before, posteriors, evidence

    def weights(self, strength: Floats) -> Floats:
        """The weights of the experts that speak and, in the last column, of the plain network."""
        raw = np.exp(np.clip(strength - HANDICAP, -30.0, 30.0)) * self.speaks
        weights = np.concatenate((raw, np.ones((*raw.shape[:-1], 1))), axis=-1)
        normalised: Floats = weights / weights.sum(axis=-1, keepdims=True)
        return normalised

    def _remember(self, p: Floats, foretold: Floats, logs: Floats) -> None:
        """Add the samples to the sums of the block. What was foretold repeats what is known, and weighs less in b."""
        weight = np.clip(foretold**-0.5, 0.1, 10.0)
        self.weighted += (weight[..., None] * p).sum(axis=0)
        self.weight += weight.sum(axis=0)
        self.plain += p.sum(axis=0)
        self.logs += logs.sum(axis=0)
        self.samples += len(p)
        if self.samples % BLOCK == 0:
            self._close_block(p.shape[-1])

    def _close_block(self, classes: int) -> None:
        """Move the shares by the sums of a block, and decide who speaks, and at which temperature."""
        mass, n = self.base_mass + self.weight[:, None], self.null_mass
        moved = self.base_mass[..., None] * self.base + self.weighted[:, None]
        self.base = np.maximum(moved / mass[..., None], TINY)
        self.base_mass = np.minimum(mass, BASE_SAMPLES * classes)
        uniform = NULL_PRIOR / classes
        total = (n + NULL_PRIOR)[:, None] * self.null - uniform
        kept = np.minimum(n, NULL_SAMPLES) / np.maximum(n, 1.0)
        self.null_mass = kept * n + BLOCK
        self.null = (kept[:, None] * total + self.plain[:, None] + uniform) / (self.null_mass + NULL_PRIOR)[:, None]
        self.blocks = np.concatenate((self.blocks, self.logs[None] / BLOCK))[-BLOCKS:]
        self.speaks = is_significant(self.blocks)
        self.temperature = int(self.blocks.mean(axis=0)[:, :LONG].max(axis=1).argmax())
        for sums in (self.weighted, self.weight, self.plain, self.logs):
            sums.fill(0.0)


def softmax(rows: Floats) -> Floats:
    """The probabilities of logits.

    >>> softmax(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """
    raised = np.exp(rows - rows.max(axis=-1, keepdims=True))
    result: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return result
