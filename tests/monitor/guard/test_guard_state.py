"""The state of a guard: the unknown rate, and losses that were skipped."""

import math

import pytest
import torch
from tests.monitor.guard.conftest import pictures
from torch import Tensor, nn

from resitta import Guard, adapt
from resitta.monitor.guard.guard_state import RATE_SAMPLES, GuardState
from resitta.training.optimizer import Adam

SURE = torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.fixture
def state(model: nn.Module) -> GuardState:
    adapter = adapt(model, "resitta")
    state = GuardState(adapter, Guard())
    state.begin_step(adapter)
    return state


def refused(state: GuardState, images: Tensor) -> int:
    return int(state.screen(images, SURE.expand(len(images), 5)).isnan().all(dim=1).sum())


def test_one_by_one_the_unknown_rate_is_remembered(state: GuardState) -> None:
    black, good = torch.zeros(1, 3, 16, 16), pictures(100)
    for _ in range(300):
        assert refused(state, black) == 1
    share = float(state.next_rate)
    assert share > 0.9
    needed = math.ceil(RATE_SAMPLES * math.log(share / 0.5))  # until the share of unknown ones has fallen to a half
    answers = [refused(state, image[None]) for image in good]
    assert answers == [1] * (needed - 1) + [0] * (100 - needed + 1)


def test_a_few_bad_ones_do_not_close_the_memory(state: GuardState) -> None:
    images = torch.cat([pictures(60), torch.zeros(40, 3, 16, 16)])
    assert [refused(state, images) for _ in range(20)] == [40] * 20


def test_logits_of_known_samples_are_untouched(state: GuardState) -> None:
    logits = torch.randn(10, 5) * 9
    assert torch.equal(state.screen(pictures(10), logits), logits)


def test_a_skipped_loss_shows(state: GuardState) -> None:
    logits = SURE.expand(4, 5)
    assert math.isfinite(state.signs(logits, None).largest)
    optimizer = state.optimizers[0]
    assert isinstance(optimizer, Adam)
    optimizer.skipped.add_(1)
    assert math.isnan(state.signs(logits, None).largest)


def test_from_step_to_step_the_unknown_rate_is_remembered_but_not_of_a_step_that_failed(model: nn.Module) -> None:
    adapter = adapt(model, "resitta")
    state, black = GuardState(adapter, Guard()), torch.zeros(1, 3, 16, 16)
    for steps in range(1, 4):
        state.begin_step(adapter)
        refused(state, black)
        state.signs(SURE, None)
        assert float(state.unknown_rate) == pytest.approx(1 - math.exp(-steps / RATE_SAMPLES), rel=1e-5)
        state.begin_step(adapter)
        refused(state, black)  # and then the step fails: nobody reads the signs
    assert float(state.unknown_rate) == pytest.approx(1 - math.exp(-3 / RATE_SAMPLES), rel=1e-5)
