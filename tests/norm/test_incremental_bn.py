import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resitta.norm.incremental_bn import (
    IncrementalBN,
    Observation,
    each_pooled,
    incremental_layers,
    measuring,
    misfit,
    observing,
    own_statistics,
    pooled,
    prior_strength,
)

Case = tuple[_BatchNorm, Tensor]
Formula = Callable[[_BatchNorm, Tensor, Tensor, Tensor], Tensor]
Floats = NDArray[np.float64]
ROWS = 3
STRENGTH = 2.5
FIRM = 1e9
"""So much noise that the prior statistics always count as `STRENGTH` samples."""


def mixture(rows: Floats, weights: Floats, prior: Floats, strength: float) -> Floats:
    """The mean and variance of a mixture, as expectations over its parts, 2×C."""
    total = strength + sum(weights)
    mean = strength * prior[0] / total
    for row, weight in zip(rows, weights, strict=True):
        mean = mean + weight * row[0] / total
    variance = strength * (prior[1] + (prior[0] - mean) ** 2) / total
    for row, weight in zip(rows, weights, strict=True):
        variance = variance + weight * (row[1] - row[0] ** 2 + (row[0] - mean) ** 2) / total
    return np.stack((mean, variance))


def summed(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sums of moments, and of the weights."""
    return (rows * weights[:, None, None]).sum(0), weights.sum()


@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.1, 300))
@settings(deadline=None, max_examples=50)
def test_pooled_statistics_are_those_of_the_mixture(seed: int, count: int, strength: float) -> None:
    rng = np.random.default_rng(seed)
    means, variances = rng.normal(size=(count, 4)) * 3, rng.gamma(1.0, size=(count, 4)) + 0.01
    rows, weights = np.stack((means, variances + means**2), axis=1), rng.gamma(0.5, size=count) * 20
    prior = np.stack((rng.normal(size=4), rng.gamma(1.0, size=4) + 0.1))
    given_rows, given_weights, given_prior = (torch.from_numpy(values) for values in (rows, weights, prior))
    scale = torch.tensor(strength, dtype=torch.float64)
    together = pooled(*summed(given_rows, given_weights), given_prior, scale)
    np.testing.assert_allclose(together, mixture(rows, weights, prior, strength), rtol=1e-8, atol=1e-10)
    each = each_pooled(given_rows, given_weights, given_prior, scale)
    for row in range(count):
        alone = mixture(rows[row : row + 1], weights[row : row + 1], prior, strength)
        np.testing.assert_allclose(each[row], alone, rtol=1e-8, atol=1e-10)


def test_variances_have_a_lower_bound() -> None:
    rows, prior = torch.ones(2, 2, 1), torch.tensor([[1.0], [0.0]])
    for found in (
        pooled(*summed(rows, torch.ones(2)), prior, torch.tensor(1.0)),
        each_pooled(rows, torch.ones(2), prior, torch.tensor(1.0))[0],
    ):
        assert found[:, 0].tolist() == pytest.approx([1.0, 1e-8])


def test_the_misfit_by_hand() -> None:
    found, expected = torch.tensor([[1.0, 5.0], [4.0, 9.0]]), torch.tensor([[0.0, 5.0], [1.0, 1.0]])
    # channel 0: one standard deviation off and twice as wide; channel 1: three times as wide
    assert misfit(found, expected, 0.0).item() == ((1 + 1) + (0 + 4)) / 2
    assert misfit(found, torch.zeros(2, 2), 0.0).isfinite()


@given(st.integers(0, 10**6), st.floats(0.1, 5), st.floats(0.01, 3))
@settings(deadline=None, max_examples=50)
def test_the_strength_of_the_prior_is_that_of_james_and_stein(seed: int, scale: float, noise: float) -> None:
    rng = np.random.default_rng(seed)
    means, variances = scale * rng.normal(size=(3, 6)), rng.gamma(2.0, size=(3, 6))
    rows, weights = np.stack((means, variances + means**2), axis=1), rng.gamma(1.0, size=3) * 10
    prior = np.stack((np.zeros(6), np.ones(6)))
    mean, variance = mixture(rows, weights, prior, 0.0)
    shift = (mean**2 + (np.sqrt(variance) - 1) ** 2).mean() - noise / weights.sum()
    expected = 64.0 if shift <= 0 else min(64.0, noise / shift)
    given_rows, given_weights, given_prior = (torch.from_numpy(values) for values in (rows, weights, prior))
    found = prior_strength(
        *summed(given_rows, given_weights), given_prior, torch.tensor(64.0).double(), noise=noise, eps=0.0
    )
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_without_samples_the_prior_has_its_full_strength() -> None:
    rows, prior = torch.zeros(3, 2, 4), torch.ones(2, 4)
    assert prior_strength(*summed(rows, torch.zeros(3)), prior, torch.tensor(64.0), noise=0.8, eps=0.0) == 64


def numbers(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The first and second moments of each sample over its positions."""
    return [(s.flatten(1).mean(1), s.flatten(1).square().mean(1)) for s in (x if x.ndim > 2 else x[..., None])]


def observation(rows: Sequence[int | None], groups: Tensor | None = None) -> Observation:
    """Samples in rows, None for one that is left out; weights that are not the counts."""
    assignment = torch.tensor([[float(row == number) for row in rows] for number in range(ROWS)]).double()
    weights, one = torch.tensor([0.5, 2.0, 3.0]).double(), torch.tensor(1.0).double()
    return Observation(assignment, one, weights, STRENGTH * one, FIRM, groups)


def statistics(layer: IncrementalBN) -> Tensor:
    return torch.stack(layer.statistics())


def test_observed_batches_move_the_statistics_before_they_are_normalised(case: Case, by_formula: Formula) -> None:
    layer, x = case
    own, by_hand = copy.deepcopy(layer), IncrementalBN(layer, ROWS, domains=1)
    source = statistics(by_hand).clone()
    moments: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(ROWS)]
    members: list[list[int | None]] = [[0, 1, None, 1, 2, 0], [1, None, None, 0, 1, 0]]
    for batch, rows in zip((x, 2 * x + 1), members, strict=True):
        for sample, row in zip(numbers(batch), rows, strict=True):
            if row is not None:
                moments[row].append(sample)
        with observing(by_hand, observation(rows)):
            found = by_hand(batch)
        means = [[torch.stack(part).mean(0).numpy() for part in zip(*row, strict=True)] for row in moments]
        wanted = torch.from_numpy(mixture(np.array(means), np.array([0.5, 2.0, 3.0]), source.numpy(), STRENGTH))
        torch.testing.assert_close(statistics(by_hand), wanted)
        torch.testing.assert_close(found, by_formula(own, batch, *wanted))
        torch.testing.assert_close(by_hand(batch), found)  # outside, statistics stay
    assert torch.equal(by_hand.source, source)


def test_samples_that_are_left_out_may_be_infinite() -> None:
    layer = IncrementalBN(nn.BatchNorm2d(2).double().eval(), ROWS, domains=1)
    x = torch.randn(3, 2, 4, 4).double()
    expected, spoiled = copy.deepcopy(layer), x.clone()
    spoiled[1, 0, 0, 0], spoiled[1, 1, 0, 0] = torch.inf, torch.nan
    for net, batch in ((expected, x), (layer, spoiled)):
        with observing(net, observation([0, None, 2])):
            net(batch)
    assert torch.equal(statistics(layer), statistics(expected))
    assert torch.equal(layer.sums, expected.sums)


def test_a_layer_that_a_pass_calls_twice_averages_over_both() -> None:
    once, twice = (IncrementalBN(nn.BatchNorm2d(2).double().eval(), ROWS, domains=1) for _ in range(2))
    one, other = torch.randn(2, 3, 2, 4, 4).double()
    with observing(twice, observation([0, 1, 2])):
        twice(one)
        twice(other)
    with observing(once, observation([0, 1, 2, 0, 1, 2])):
        once(torch.cat((one, other)))
    torch.testing.assert_close(statistics(twice), statistics(once))


def test_each_group_is_normalised_with_its_own_statistics(case: Case, by_formula: Formula) -> None:
    layer, x = case
    own, wrapped = copy.deepcopy(layer), IncrementalBN(layer, ROWS, domains=4)
    source, groups = statistics(wrapped).clone(), [0, 1, 2, 1, 0, 2]
    batch = observation([0, 1, None, 1, 0, 2], torch.tensor(groups))
    with observing(wrapped, batch):
        found = wrapped(x)
    moments = numbers(x)
    for group, members, weight in ((0, [0, 4], 0.5), (1, [1, 3], 2.0), (2, [5], 3.0)):
        first, second = (sum(moments[i][part] for i in members) / len(members) for part in (0, 1))
        assert isinstance(first, Tensor)
        mean = (STRENGTH * source[0] + weight * first) / (STRENGTH + weight)
        square = (STRENGTH * (source[1] + source[0] ** 2) + weight * second) / (STRENGTH + weight)
        for i in (i for i, g in enumerate(groups) if g == group):
            wanted = by_formula(own, x[i : i + 1], mean, square - mean**2)
            torch.testing.assert_close(found[i : i + 1], wanted)
    assert torch.equal(wrapped.domains[3], source)  # there are more places than groups


def test_activations_keep_their_precision() -> None:
    layer = IncrementalBN(nn.BatchNorm2d(2).eval(), ROWS, domains=ROWS)
    x = torch.randn(3, 2, 4, 4).bfloat16()
    for groups in (None, torch.tensor([0, 1, 2])):
        with observing(layer, observation([0, 1, 2], groups)):
            assert layer(x).dtype == torch.bfloat16
    assert statistics(layer).dtype == layer.sums.dtype == torch.float32
    assert layer.bfloat16().sums.dtype == torch.float32


def test_gradients_flow_through_the_statistics_of_a_batch(case: Case, by_formula: Formula) -> None:
    layer, x = case
    own, wrapped = copy.deepcopy(layer), IncrementalBN(layer, ROWS, domains=1)
    before, axes = statistics(wrapped).clone(), [axis for axis in range(x.ndim) if axis != 1]
    one, other, direction = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn(x.shape).double()
    with own_statistics(wrapped):
        found = wrapped(one)
    expected = by_formula(own, other, other.mean(axes), other.var(axes, correction=0))
    torch.testing.assert_close(found, expected)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()  # type: ignore[no-untyped-call]
    assert one.grad is not None
    torch.testing.assert_close(one.grad, other.grad)
    for parameter, like in zip(wrapped.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, like.grad)
    assert torch.equal(statistics(wrapped), before)


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1, 1)])
def test_a_single_value_has_no_statistics_of_its_own(shape: tuple[int, ...]) -> None:
    layer = nn.BatchNorm2d(4) if len(shape) == 4 else nn.BatchNorm1d(4)
    wrapped, x = IncrementalBN(layer.eval(), ROWS, domains=1), torch.randn(shape)
    plain = wrapped(x)
    with own_statistics(wrapped):
        assert torch.equal(wrapped(x), plain)
    with observing(wrapped, observation([1])):
        assert wrapped(x).isfinite().all()


def test_measuring_notes_the_misfit_of_each_layer_and_changes_nothing(case: Case) -> None:
    layer, x = case
    network = nn.Sequential(IncrementalBN(copy.deepcopy(layer), ROWS, 1), IncrementalBN(layer, ROWS, 1))
    plain, axes = network(x), [axis for axis in range(x.ndim) if axis != 1]
    with measuring(network) as found:
        assert torch.equal(network(x), plain)
    own, batch = [statistics(one) for one in incremental_layers(network)], [x, network[0](x)]
    moments = [torch.stack((b.mean(axes), b.var(axes, correction=0))) for b in batch]
    expected = [misfit(*pair, layer.eps) for pair in zip(moments, own, strict=True)]
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))
    network(x)
    assert len(found) == 2


@pytest.mark.parametrize("mode", [measuring, own_statistics])
def test_modes_end_with_their_block(mode: Callable[[nn.Module], object]) -> None:
    layer = IncrementalBN(nn.BatchNorm1d(2).eval(), ROWS, domains=1)
    context = mode(layer)
    with pytest.raises(KeyError), context:  # type: ignore[attr-defined]
        raise KeyError
    with pytest.raises(KeyError), observing(layer, observation([0])):
        raise KeyError
    assert (layer.observation, layer.own, layer.misfits) == (None, False, None)


def observed(layer: IncrementalBN, seed: int) -> None:
    x = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(seed)).double()
    with observing(layer, observation([0, 1, 2, 0])):
        layer(x + seed)


def test_domains_begin_are_remembered_and_recalled() -> None:
    layer = IncrementalBN(nn.BatchNorm2d(2).double().eval(), ROWS, domains=2)
    source = statistics(layer).clone()
    observed(layer, 1)
    first = statistics(layer).clone()
    layer.remember(1)
    layer.begin(afresh=True)
    assert not layer.sums.any()
    for found in (layer.prior, statistics(layer), layer.source, layer.domains[0]):
        assert torch.equal(found, source)
    layer.recall(1)
    assert torch.equal(layer.prior, first)
    assert torch.equal(statistics(layer), source)  # they move with the next batch
    layer.move_to(layer.prior)
    assert torch.equal(statistics(layer), first)
    observed(layer, 2)
    second = statistics(layer).clone()
    layer.begin(afresh=False)
    for found in (layer.prior, statistics(layer)):
        assert torch.equal(found, second)
    assert torch.equal(layer.domains[1], first)
    layer.begin(afresh=True)
    observed(layer, 1)
    assert torch.equal(statistics(layer), first)  # as if nothing had been before


def test_a_state_holds_everything_but_the_source() -> None:
    layer = IncrementalBN(nn.BatchNorm2d(2).double().eval(), ROWS, domains=2)
    other, smaller = copy.deepcopy(layer), IncrementalBN(nn.BatchNorm2d(2).double().eval(), 2, domains=2)
    observed(layer, 1)
    layer.remember(0)
    layer.begin(afresh=False)
    observed(layer, 2)
    state = layer.state_dict()
    assert {"prior", "sums", "domains"} < set(state)
    assert "source" not in state
    other.load_state_dict(state)
    observed(layer, 3)
    observed(other, 3)
    assert torch.equal(statistics(layer), statistics(other))
    with pytest.raises(RuntimeError, match="sums"):
        smaller.load_state_dict(state)
    plain = layer.unwrap()
    assert isinstance(plain, nn.BatchNorm2d)
    x = torch.randn(2, 2, 3, 3).double()
    assert torch.equal(plain(x), layer(x))
