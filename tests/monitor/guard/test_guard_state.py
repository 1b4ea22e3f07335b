"""The file of one learner: bad company, and losses that were skipped."""

import math

import pytest
import torch
from tests.monitor.guard.conftest import pictures
from torch import Tensor, nn

from resitta import Guard, adapt
from resitta.monitor.guard.guard_state import COMPANY, GuardState
from resitta.training.optimizer import Adam

SURE = torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.fixture
def case(model: nn.Module) -> GuardState:
    adapter = adapt(model, "resitta")
    case = GuardState(adapter, Guard())
    case.open(adapter)
    return case


def refused(case: GuardState, images: Tensor) -> int:
    return int(case.screen(images, SURE.expand(len(images), 5)).isnan().all(dim=1).sum())


def test_one_by_one_the_company_is_remembered(case: GuardState) -> None:
    black, good = torch.zeros(1, 3, 16, 16), pictures(100)
    for _ in range(300):
        assert refused(case, black) == 1
    share = float(case.seen)
    assert share > 0.9
    needed = math.ceil(COMPANY * math.log(share / 0.5))  # until the share of unknown ones has fallen to a half
    answers = [refused(case, image[None]) for image in good]
    assert answers == [1] * (needed - 1) + [0] * (100 - needed + 1)


def test_a_few_bad_ones_do_not_spoil_the_company(case: GuardState) -> None:
    images = torch.cat([pictures(60), torch.zeros(40, 3, 16, 16)])
    assert [refused(case, images) for _ in range(20)] == [40] * 20


def test_logits_of_known_samples_are_untouched(case: GuardState) -> None:
    logits = torch.randn(10, 5) * 9
    assert torch.equal(case.screen(pictures(10), logits), logits)


def test_a_skipped_loss_shows(case: GuardState) -> None:
    logits = SURE.expand(4, 5)
    assert math.isfinite(case.signs(logits, None).largest)
    optimizer = case.optimizers[0]
    assert isinstance(optimizer, Adam)
    optimizer.skipped.add_(1)
    assert math.isnan(case.signs(logits, None).largest)


def test_from_step_to_step_the_company_is_remembered_but_not_of_a_step_that_failed(model: nn.Module) -> None:
    adapter = adapt(model, "resitta")
    case, black = GuardState(adapter, Guard()), torch.zeros(1, 3, 16, 16)
    for steps in range(1, 4):
        case.open(adapter)
        refused(case, black)
        case.signs(SURE, None)
        assert float(case.company) == pytest.approx(1 - math.exp(-steps / COMPANY), rel=1e-5)
        case.open(adapter)
        refused(case, black)  # and then the step fails: nobody reads the signs
    assert float(case.company) == pytest.approx(1 - math.exp(-3 / COMPANY), rel=1e-5)
