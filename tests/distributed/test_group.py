"""Two processes over gloo against one process that sees the union of their banks."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.conformance import tiny_network
from resitta.distributed.group import finish
from resitta.errors import BadSetting
from resitta.methods.rotta import timeliness
from resitta.norm.resibn import ResiBN, align

RANKS = Path(__file__).with_name("ranks.py")
SETTINGS: dict[str, Any] = {"capacity": 16, "update_every": 16, "lr": 0.01}


def run(folder: Path, *scenarios: str) -> list[dict[str, Any]]:
    """Run scenarios in two ranks and return what each of those that lived saw."""
    command = [sys.executable, str(RANKS), ",".join(scenarios)]
    ranks = [subprocess.Popen([*command, str(rank), "2", str(folder)]) for rank in (0, 1)]
    try:
        for rank in ranks:
            rank.wait(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(folder / f"{r}.pt") for r in (0, 1) if (folder / f"{r}.pt").exists()]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("group"), "together", "without_images", "with_a_prior", "strangers")


def plain(method: str) -> resitta.Adapter:
    return resitta.adapt(tiny_network().double(), method, strong_view=lambda images: images * 0.6, **SETTINGS)


def state(adapter: resitta.Adapter) -> dict[str, Tensor]:
    return {key: value for key, value in adapter.state_dict().items() if isinstance(value, Tensor)}


def learn(learner: Any, samples: Tensor, ages: Tensor) -> None:
    """One update of a plain learner on samples of ours instead of its bank's."""
    weights = timeliness((ages + 1) / 16) if learner.method.name == "rotta" else None
    networks = learner.networks
    networks.train_student(samples, networks.student.augment(samples, networks.view), weights)
    networks.move_teacher()
    if learner.method.name == "resitta":
        align([layer for layer in learner.modules() if isinstance(layer, ResiBN)], learner.method.eta)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["resitta", "rotta"])
def test_ranks_agree_and_equal_one_process_that_sees_the_union(seen: list[dict[str, Any]], method: str) -> None:
    first, second = (rank["together"][method] for rank in seen)
    assert [update["updates"] for update in first] == [1, 2, 3, 4, 4], "four updates, and the word that all have ended"
    assert len(second) == len(first)
    assert [update["ended"] for update in first] == [False, False, True, True, True]
    union = plain(method)
    for one, other in zip(first[:4], second[:4], strict=True):
        brought = [rank for rank in (one, other) if not rank["ended"]]
        samples, ages = (torch.cat([rank[key] for rank in brought]) for key in ("samples", "ages"))
        learn(union.learner, samples, ages)
        for key, expected in state(union).items():
            torch.testing.assert_close(one["state"][key], other["state"][key], rtol=0, atol=0)
            torch.testing.assert_close(one["state"][key], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_the_union_is_more_than_either_stream(seen: list[dict[str, Any]]) -> None:
    """The two cameras differ so much that neither alone would give the common statistics."""
    first, second = (rank["together"]["resitta"][0] for rank in seen)
    for rank in (first, second):
        alone = plain("resitta")
        learn(alone.learner, rank["samples"], rank["ages"])
        moved = [(state(alone)[key] - value).abs().max() for key, value in rank["state"].items() if "running" in key]
        assert max(moved) > 1e-3


@pytest.mark.slow
def test_a_rank_without_images_takes_part_and_counts_nothing(seen: list[dict[str, Any]]) -> None:
    alone = plain("resitta")
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(64, 3, 16, 16, generator=generator, dtype=torch.float64) * 0.8
    for batch in torch.split(images, 16):
        alone(batch)
    for rank in seen:
        assert rank["without_images"]["updates"] == 4
        for key, expected in state(alone).items():
            torch.testing.assert_close(rank["without_images"]["state"][key], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_each_rank_has_a_label_prior_of_its_own_stream(seen: list[dict[str, Any]]) -> None:
    first, second = (rank["with_a_prior"] for rank in seen)
    assert (first["samples"], second["samples"]) == (40, 72)
    assert not torch.equal(first["prior"]["last"], second["prior"]["last"])
    assert first["state"].keys() == second["state"].keys()
    for key, value in first["state"].items():
        torch.testing.assert_close(value, second["state"][key], rtol=0, atol=0)


@pytest.mark.slow
def test_updates_of_a_group_are_not_recorded_but_predictions_are(seen: list[dict[str, Any]]) -> None:
    assert [rank["without_images"]["recorded"] for rank in seen] == [(False, True), (False, True)]


@pytest.mark.slow
def test_ranks_that_do_not_belong_together_are_refused(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        model, history = rank["strangers"]["said"]
        assert model.startswith("rank 1 has another model or method than rank 0")
        assert history.startswith("rank 1 has another number of updates than rank 0")


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["one_dies", "one_stands_still", "one_dies_in_an_update"])
def test_a_lost_rank_is_reported_within_the_time_out(tmp_path: Path, trouble: str) -> None:
    heard = run(tmp_path, trouble)[0][trouble]
    assert heard["said"].startswith("rank 0 of 2 lost the others in update 2")
    assert "restart all ranks from one's last snapshot" in heard["said"]
    assert heard["seconds"] < 15
    assert heard["logits"].isfinite().all(), "it still predicts"
    assert same(heard["before"], heard["after"]), "what it had begun to learn is taken back"


@pytest.mark.slow
def test_a_rank_that_has_finished_takes_back_the_update_in_which_another_dies(tmp_path: Path) -> None:
    heard = run(tmp_path, "one_dies_while_another_has_finished")[0]["one_dies_while_another_has_finished"]
    assert heard["said"].startswith("rank 0 of 2 lost the others in update 2")
    assert same(heard["before"], heard["after"])


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def images(n: int) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("method", ["resitta", "rotta"])
def test_one_rank_is_the_plain_adapter(model: nn.Module, method: str) -> None:
    member = resitta.adapt(model, method, group="world")
    expected = resitta.adapt(model, method)
    for batch in torch.split(images(200), 50):
        assert torch.equal(member(batch), expected(batch))
    finish(member)
    assert all(torch.equal(value, state(expected)[key]) for key, value in state(member).items())
    assert copy.deepcopy(member)(images(3)).shape == (3, 5)


@pytest.mark.parametrize("options", [{"method": "tent"}, {"method": "note"}, {"method": "resitta", "norm": "adbn"}])
def test_methods_that_adapt_to_batches_are_refused(model: nn.Module, options: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match="cannot adapt as a group"):
        resitta.adapt(model, **options, group="world")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guard": True}, "a group cannot be guarded"),
        ({"background": True}, "a group cannot learn in the background"),
        ({"micro_batch": 16}, "leave out micro_batch"),
        ({"reset_on_shift": 2.0}, "leave out reset_on_shift"),
    ],
)
def test_what_does_not_go_with_a_group_is_refused(model: nn.Module, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        resitta.adapt(model, "resitta", group="world", **options)


def test_a_group_needs_torch_distributed(model: nn.Module) -> None:
    with pytest.raises(BadSetting, match="init_process_group"):
        resitta.adapt(model, "resitta", group="world")
