"""One rank of a group, run as a script by the tests: `ranks.py SCENARIO RANK SIZE FOLDER`.

Every scenario leaves what it saw in FOLDER/RANK.pt.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import resitta
from resitta.conformance import tiny_network
from resitta.distributed.group import finish
from resitta.errors import GroupFailure
from resitta.norm.resibn import ResiBN

TIMEOUT = 3
SETTINGS: dict[str, Any] = {"capacity": 16, "update_every": 16, "lr": 0.01}


def darker(images: Tensor) -> Tensor:
    """A view without randomness, yet with something to learn: under the identity teacher and student would agree."""
    return images * 0.6


def camera(rank: int, n: int) -> Tensor:
    """A stream of float64 images; each rank's has a brightness of its own."""
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(n, 3, 16, 16, generator=generator, dtype=torch.float64) * (0.3 + 0.5 * rank)


def adapter(method: str = "resitta", **options: Any) -> resitta.Adapter:
    return resitta.adapt(tiny_network().double(), method, strong_view=darker, **SETTINGS, **options)


def observe(adapter: resitta.Adapter) -> list[dict[str, Any]]:
    """Note before each update what the bank holds, and after it the state of the networks."""
    seen: list[dict[str, Any]] = []
    learner: Any = adapter.learner
    update = learner.update

    def noted() -> None:
        samples, ages = learner.bank.samples.clone(), torch.from_numpy(learner.bank.ages.copy())
        update()
        brought = {"samples": samples, "ages": ages, "ended": getattr(learner.networks.reduction, "ended", False)}
        seen.append({**brought, "state": networks(adapter), "updates": learner.updates})

    learner.update = noted
    return seen


def networks(adapter: resitta.Adapter) -> dict[str, Tensor]:
    """Every parameter and statistic of teacher and student."""
    return {key: value for key, value in adapter.state_dict().items() if isinstance(value, Tensor)}


def together(rank: int) -> dict[str, Any]:
    """Two streams of different lengths, in batches of different sizes, with two methods."""
    seen = {}
    for method in ("resitta", "rotta"):
        member = adapter(method, group="world")
        seen[method] = observe(member)
        for batch in torch.split(camera(rank, n=(40, 72)[rank]), (7, 24)[rank]):
            member(batch)
        finish(member)
    return seen


def without_images(rank: int) -> dict[str, Any]:
    """Rank 0 never sees an image."""
    member = adapter(group="world")
    for batch in torch.split(camera(1, n=64), 16) if rank == 1 else ():
        member(batch)
    finish(member)
    learner: Any = member.learner
    recorded = (learner.replay.enabled, learner.networks.teacher.replay.enabled)
    return {"state": networks(member), "updates": member.stats.updates, "recorded": recorded}


def with_a_prior(rank: int) -> dict[str, Any]:
    """Each rank corrects its own stream, and learns from what it has corrected."""
    member = adapter(group="world", label_prior="temporal", feedback=True)
    for batch in torch.split(camera(rank, n=(40, 72)[rank]), 8):
        member(batch)
    finish(member)
    assert member.prior is not None
    return {"state": networks(member), "prior": member.prior.get_extra_state(), "samples": member.prior.stats.samples}


def strangers(rank: int) -> dict[str, Any]:
    """Ranks with other weights or other histories are refused."""
    said = []
    model = tiny_network().double()
    next(model.parameters()).data += rank
    for attempt in (lambda: resitta.adapt(model, "resitta", group="world"), lambda: after_reset(rank)):
        try:
            attempt()
        except GroupFailure as error:
            said.append(str(error))
    return {"said": said}


def after_reset(rank: int) -> None:
    """Rank 1 starts anew, behind the others' back."""
    member = adapter(group="world")
    for batch in torch.split(camera(rank, n=32), 16):
        member(batch)
        if rank == 1:
            member.learner.updates = 0


def one_dies(rank: int) -> dict[str, Any]:
    return bereft(rank, lambda: os._exit(9))


def one_stands_still(rank: int) -> dict[str, Any]:
    return bereft(rank, lambda: time.sleep(TIMEOUT + 1))


def one_dies_in_an_update(rank: int) -> dict[str, Any]:
    """Rank 1 dies between two collectives: the teachers have exchanged their statistics, the students not all."""
    seen: list[int] = []

    def die(layer: Any, inputs: Any) -> None:
        seen.append(1)
        if len(seen) == 6:  # the second layer of the student
            os._exit(9)

    def arm(member: resitta.Adapter) -> None:
        for module in member.learner.modules() if rank == 1 else ():
            if isinstance(module, ResiBN):
                module.register_forward_pre_hook(die)

    return bereft(rank, lambda: None, arm)


def one_dies_while_another_has_finished(rank: int) -> dict[str, Any]:
    member = adapter(group="world")
    member(camera(rank, 16))
    before = member.state_dict()
    if rank == 1:
        layers = [module for module in member.learner.modules() if isinstance(module, ResiBN)]
        layers[-1].register_forward_pre_hook(lambda *_: os._exit(9))  # of the student: in the next update
        member(camera(rank, 16))
    try:
        finish(member)
    except GroupFailure as error:
        return {"said": str(error), "before": before, "after": member.state_dict()}
    return {"said": "nothing"}


def bereft(rank: int, trouble: Any, prepare: Any = lambda member: None) -> dict[str, Any]:
    """Rank 1 is in trouble after its first update; rank 0 must hear of it."""
    member = adapter(group="world")
    member(camera(rank, 16))
    prepare(member)
    if rank == 1:
        trouble()
    before, begin = member.state_dict(), time.monotonic()
    try:
        member(camera(rank, 16))
    except GroupFailure as error:
        seconds = time.monotonic() - begin
        with member.paused():
            logits = member(camera(rank, 4))
        states = {"before": before, "after": member.state_dict()}
        return {"said": str(error), "seconds": seconds, "logits": logits, **states}
    return {"said": "nothing", "seconds": 0.0}


def main(scenarios: str, rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, timedelta(seconds=TIMEOUT), size, rank)
    torch.save({name: globals()[name](rank) for name in scenarios.split(",")}, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
