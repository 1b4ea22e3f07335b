"""The filter behind a label prior in time: what outputs so far foretell about the class of the next image.

A network's output p(c) stands for p(image | c) up to the share b(c) that the network gives to class c in general, so a
prior π(c) turns it into the posterior π(c) p(c) / b(c), normalised. Experts propose the prior of the next sample from
those before it. They are weighted by their evidence Σ_c π(c) p(c) / b(c), which tells how well they foretell the
network's outputs, and have a say only while it is significantly above one. On a stream without temporal correlation
none has, and the logits stay as they are.

Arrays are indexed by sample (T), expert (E) or horizon (2), temperature (M) and class (K), in this order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
STICKY = (0.5, 0.9, 0.99, 0.99)
"""Experts that expect the class of the last sample again, with these probabilities; the last one for long runs."""
HALF_LIVES = (8, 32)
"""Experts that expect each class as often as it came lately: the half-lives, in samples, of these frequencies."""
CHAINS, EXPERTS = len(STICKY), len(STICKY) + len(HALF_LIVES)
LONG = CHAINS - 1
"""The expert for runs of a class that last so long that shares over a short horizon are those of that class."""
HORIZON = np.array([int(expert == LONG) for expert in range(EXPERTS)])
"""Which of two horizons an expert's shares are averaged over: the short one, or the long one."""
HANDICAP = 4.0 * HORIZON[:, None]
"""Subtracted from the log evidence of an expert. Over the long horizon a network's bias is known less well."""
TRUST = np.array([*STICKY, *(0.9 for _ in HALF_LIVES)])[:, None]
"""The weight of an expert's belief in its prior; the rest is the uniform distribution."""
RATE = np.array([*(1.0 for _ in STICKY), *(1 - 0.5 ** (1 / life) for life in HALF_LIVES)])[:, None]
"""How far a belief moves to the posterior of a sample."""
GAIN, KEPT = TRUST * RATE, (1 - RATE)[CHAINS:, :, None]
"""What of a posterior enters the next prior, and what remains of the last prior of the frequencies."""

TEMPERATURES = (0.5, 1.0, 2.0)
"""The logits are divided by one of these: by that at which the chains foretell the outputs best. Most networks are too
certain of images from other domains, and over many samples evidence that is too certain adds up."""
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
TOLERANCE = 0.02
"""A sample repeats the one before it if no log probability differs by more than this, absolutely and relatively."""


def outputs_of(logits: Floats) -> Floats:
    """The probabilities of T×K logits at each temperature, which is twice the one before: T×M×K.

    >>> outputs_of(np.log([[0.2, 0.8]]))[0, 1].round(3)
    array([0.2, 0.8])
    """
    p = np.empty((len(logits), len(TEMPERATURES), logits.shape[-1]))
    np.exp((logits - logits.max(axis=-1, keepdims=True)) / TEMPERATURES[-1], out=p[:, -1])
    for m in range(len(TEMPERATURES) - 1, 0, -1):
        np.square(p[:, m], out=p[:, m - 1])
    p /= p.sum(axis=-1, keepdims=True)
    return p


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
    speaks = (weights[:, :-1] > 0).any(axis=1)
    if not speaks.any():
        return np.full_like(outputs, np.nan)
    mixture = np.einsum("te,tek->tk", weights[:, :-1], posteriors)
    mixture += weights[:, -1:] * outputs
    np.log(np.maximum(mixture, np.finfo(np.float32).tiny, out=mixture), out=mixture)
    mixture[~speaks] = np.nan
    return mixture


def mixture_weights(strength: Floats, speaks: Bools) -> Floats:
    """The weights of the experts that speak and, in the last place, of the plain network: T×(E+1)×M of T×E×M, E×M.

    >>> mixture_weights(np.zeros((1, EXPERTS, 1)), np.ones((EXPERTS, 1)) > 0)[0, :, 0].round(3)
    array([0.166, 0.166, 0.166, 0.003, 0.166, 0.166, 0.166])
    """
    weights = np.ones((len(strength), EXPERTS + 1, strength.shape[-1]))
    raw = np.minimum(np.maximum(strength - HANDICAP, -30.0), 30.0)
    np.multiply(np.exp(raw, out=raw), speaks, out=weights[:, :-1])
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def is_significant(means: Floats) -> Bools:
    """Whether the mean log evidence of each expert is clearly above zero: a row for each block, a column per expert.

    >>> is_significant(np.array([[1.0, 0.1], [1.1, -0.1], [0.9, 0.2], [1.0, 0.0]]))
    array([ True, False])
    """
    if len(means) < LEAST_BLOCKS:
        return np.zeros(means.shape[1:], dtype=bool)
    mean, error = means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))
    result: Bools = mean > np.maximum(STANDARD_ERRORS * error, LEAST_EVIDENCE)
    return result


def log_evidence(priors: Floats, p: Floats, null: Floats) -> tuple[Floats, Floats]:
    """By how much each expert foretells outputs better than null shares: T×E×M×K priors, T×M×K outputs, 2×M×K shares.

    The second result is what counts for significance. A network that begins to prefer a class, in fog say, looks like
    a class that has become frequent. So frequencies must also be better than the null shares with that of one class
    moved to its frequency, and the expert for long runs better than frequencies are over the long horizon.

    >>> belief, null = np.array([[[[0.8, 0.1, 0.1]]]]), np.full((2, 1, 3), 1 / 3)
    >>> priors = TRUST[:, :, None] * belief + (1 - TRUST[:, :, None]) / 3
    >>> for logs in log_evidence(priors, np.array([[[0.9, 0.05, 0.05]]]), null):
    ...     print(logs[0, :, 0].round(2) + 0)
    [0.47 0.73 0.78 0.78 0.73 0.73]
    [0.47 0.73 0.78 0.24 0.   0.  ]
    """
    ratios, rest = p[:, None] / null, 1 - TRUST
    # A prior's rest is the uniform distribution, and here that of the null shares: the evidence of the rest is 1.
    excess = ratios.mean(axis=-1) - 1
    foretold = np.einsum("temk,tmk->tem", priors, ratios[:, 0]) - rest * excess[:, :1]
    over_long = np.einsum("temk,tmk->tem", priors[:, LONG:], ratios[:, 1]) - rest[LONG:] * excess[:, 1:]
    foretold[:, LONG] = over_long[:, 0]
    plain = np.log(foretold)
    foretold[:, LONG] /= (1 + over_long[:, 1:].sum(axis=1)) / (1 + len(HALF_LIVES))
    frequencies, trust = priors[:, CHAINS:], TRUST[CHAINS:]
    uniform = rest[CHAINS:] / p.shape[-1]
    moved = np.abs(frequencies - (trust[..., None] * null[0] + uniform[..., None])).argmax(axis=-1)
    sample, expert, m = np.ogrid[tuple(map(slice, moved.shape))]
    own, general = p[sample, m, moved], null[0][m, moved]
    share = frequencies[sample, expert, m, moved] - uniform + rest[CHAINS:] * general
    foretold[:, CHAINS:] /= share * own / general + (1 - share) / (1 - general) * (1 - own)
    return plain, np.log(foretold)


@dataclass
class TemporalFilter:
    """What is remembered of the stream: a few numbers per class, for each temperature. Arrays are never written to.

    The arithmetic is that of the module's docstring.
    """

    priors: Floats
    """Each expert's of the next sample, E×M×K."""
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
            priors=np.full((EXPERTS, m, classes), 1 / classes),
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

    def look(self, p: Floats) -> tuple[Floats, Floats]:
        """Return the experts' posteriors of T×M×K outputs, at the present temperature, and their weights; learn nothing."""
        m = self.temperature
        joint = self.priors[:, m] * (p[:, None, m] / self.base[HORIZON, m])
        weights = mixture_weights(self.strength[None, :, m : m + 1], self.speaks[:, m : m + 1])
        return joint / joint.sum(axis=-1, keepdims=True), np.broadcast_to(weights[..., 0], (len(p), EXPERTS + 1))

    def take(self, p: Floats) -> tuple[Floats, Floats, Floats]:
        """Take in T×M×K outputs that lie in one block.

        Return, at the present temperature, the likelihoods, the experts' posteriors, and their weights.
        """
        likelihoods = p[:, None] / self.base[HORIZON]
        priors, joints, evidence = self._filter(likelihoods)
        logs, strict_logs = log_evidence(priors, p, self.null)
        samples, m = len(p), self.temperature
        strength = (DECAY[:samples, :samples] @ logs.reshape(samples, -1)).reshape(logs.shape)
        strength += MEMORY ** np.arange(1, samples + 1)[:, None, None] * self.strength
        earlier = mixture_weights(strength - logs, self.speaks)
        foretold = np.einsum("tem,tem->tm", earlier[:, :-1], evidence) + earlier[:, -1]
        weights = mixture_weights(strength[..., m : m + 1], self.speaks[:, m : m + 1])
        self.strength = strength[-1]
        self._remember(p, foretold, strict_logs)
        return likelihoods[:, :, m], joints[:, :, m] / evidence[:, :, m, None], weights[..., 0]

    def _filter(self, likelihoods: Floats) -> tuple[Floats, Floats, Floats]:
        """Each expert's prior of each sample, its posterior before it is normalised, and its evidence.

        This is the one loop over samples. A belief moves to the posterior q by the rate r, and the prior is s times
        the belief, plus a uniform rest: so the next prior is (1-r) prior + r s q + r rest.
        """
        priors, joints = np.empty((len(likelihoods) + 1, *likelihoods.shape[1:])), np.empty_like(likelihoods)
        evidence, rest = np.empty(likelihoods.shape[:-1]), (RATE * (1 - TRUST) / likelihoods.shape[-1])[..., None]
        priors[0] = self.priors
        for prior, likelihood, joint, total, following in zip(
            priors[:-1], likelihoods, joints, evidence, priors[1:], strict=True
        ):
            np.multiply(prior, likelihood, out=joint)
            np.add.reduce(joint, axis=-1, out=total)
            np.multiply(joint, (GAIN / total)[..., None], out=following)
            following += rest
            following[CHAINS:] += KEPT * prior[CHAINS:]
        self.priors = priors[-1].copy()
        return priors[:-1], joints, evidence

    def _remember(self, p: Floats, foretold: Floats, logs: Floats) -> None:
        """Add the samples to the sums of the block. What was foretold repeats what is known, and weighs less in b."""
        weight = np.minimum(np.maximum(1 / np.sqrt(foretold), 0.1), 10.0)
        self.weighted = self.weighted + np.einsum("tm,tmk->mk", weight, p)
        self.weight = self.weight + weight.sum(axis=0)
        self.plain = self.plain + p.sum(axis=0)
        self.logs = self.logs + logs.sum(axis=0)
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
        self.temperature = int(self.blocks[:, :LONG].mean(axis=0).max(axis=0).argmax())
        for name in ("weighted", "weight", "plain", "logs"):
            setattr(self, name, np.zeros_like(getattr(self, name)))
