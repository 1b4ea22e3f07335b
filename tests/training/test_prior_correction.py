import math

import pytest
import torch
from torch import Tensor

from resitta.training.prior_correction import PriorCorrection, prior_corrected, smoothed_prior


def logits(n: int, classes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (3 * torch.randn(n, classes, generator=torch.Generator().manual_seed(n))).to(dtype)


def prior_by_hand(rows: list[list[float]]) -> list[float]:
    n, classes = len(rows), len(rows[0])
    exps = [[math.exp(z) for z in row] for row in rows]
    p = [[e / sum(row) for e in row] for row in exps]
    prior = [sum(row[c] for row in p) / n for c in range(classes)]
    s = max(1 / n, 1 / classes) / max(prior)
    return [(one + s) / (1 + s * classes) for one in prior]


@pytest.mark.parametrize(("n", "classes"), [(1, 4), (3, 10), (64, 10), (64, 1000)])
def test_by_hand(n: int, classes: int) -> None:
    z = logits(n, classes)
    prior = prior_by_hand(z.tolist())
    assert sum(prior) == pytest.approx(1)
    torch.testing.assert_close(smoothed_prior(z.softmax(1)), torch.tensor(prior).double())
    torch.testing.assert_close(prior_corrected(z, "logits"), z * torch.tensor(prior).double())
    weighted = z.softmax(1) * torch.tensor(prior).double()
    found = prior_corrected(z, "probability")
    torch.testing.assert_close(found.exp(), weighted / weighted.sum(1, keepdim=True))
    torch.testing.assert_close(found.exp().sum(1), torch.ones(n).double())
    assert prior_corrected(z, "none") is z


def test_only_the_sane_form_ignores_a_constant_added_to_a_row() -> None:
    z = logits(64, 10)
    moved = z - z.max(dim=1, keepdim=True).values
    torch.testing.assert_close(prior_corrected(z, "probability"), prior_corrected(moved, "probability"))
    changed = prior_corrected(z, "logits").argmax(1) != prior_corrected(moved, "logits").argmax(1)
    assert changed.any()


@pytest.mark.parametrize("kind", ["logits", "probability", "none"])
def test_precision_is_kept_and_half_precision_computes_in_float32(kind: PriorCorrection) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert prior_corrected(logits(8, 5, dtype), kind).dtype == dtype
    z = logits(8, 5, torch.bfloat16)
    assert torch.equal(prior_corrected(z, kind), prior_corrected(z.float(), kind).to(torch.bfloat16))


def test_masked_classes_stay_masked() -> None:
    z = logits(8, 5)
    z[:, 2] = -torch.inf
    assert (prior_corrected(z, "logits")[:, 2] == -torch.inf).all()
    found = prior_corrected(z, "probability")
    assert found.isfinite().all()
    assert (found.exp()[:, 2] == 0).all()
