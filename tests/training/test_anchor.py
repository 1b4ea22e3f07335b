"""An anchor bounds how far parameters can go, and does nothing where it is not asked for."""

import torch
from torch import nn

from resitta import adapt
from resitta.training.anchor import Anchor
from resitta.training.optimizer import Adam


def test_a_parameter_pushed_for_ever_stays_within_the_bound() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer, anchor = Adam([weight], lr=0.01), Anchor([weight], pull=0.1)
    for _ in range(500):
        optimizer.descend(weight.sum())
        anchor([weight])
    assert torch.allclose(weight.detach(), torch.full((3,), -0.09), atol=1e-3), "lr (1-a) / a"


def test_without_pull_it_keeps_and_changes_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    anchor = Anchor([weight], pull=0.0)
    weight.data.fill_(7.0)
    anchor([weight])
    assert weight.tolist() == [7.0, 7.0]
    assert not list(anchor.buffers())


def test_without_parameters_there_is_nothing_to_hold() -> None:
    Anchor([], pull=0.1)([])
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapter = adapt(model.eval(), "resitta", anchor=0.1, update_every=16)
    adapter(torch.rand(16, 3, 10, 10, generator=torch.Generator().manual_seed(0)))
    assert adapter.stats.updates == 1


def test_it_moves_with_the_network_and_leaves_no_trace_in_its_state() -> None:
    anchor = Anchor([torch.ones(2)], pull=0.5).to(torch.float64)
    assert [buffer.dtype for buffer in anchor.buffers()] == [torch.float64]
    assert not anchor.state_dict()


def test_resitta_with_an_anchor_stays_nearer_to_the_source(model: nn.Module) -> None:
    images = torch.rand(40, 16, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    distances = []
    for anchor in (0.0, 0.1, 1.0):
        adapter = adapt(model, "resitta", anchor=anchor, update_every=16, nu_m=0.5)
        for batch in images:
            adapter(batch)
        exported = dict(adapter.export().named_parameters())
        distances.append(sum(float((exported[name] - p).detach().norm()) for name, p in model.named_parameters()))
    assert distances[0] > 2 * distances[1] > 0
    assert distances[2] < 1e-6
