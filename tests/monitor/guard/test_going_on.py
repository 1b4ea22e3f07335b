"""A guarded adapter that is saved, loaded, copied or pickled goes on bit for bit, bad frames and rollbacks included."""

import copy
import functools
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network
from tests.monitor.guard.conftest import pictures
from tests.monitor.guard.test_snapshot import learned
from torch import Tensor, nn

import resitta
from resitta import Adapter, Autosave, Guard, adapt
from resitta.checkpoint.format import read, seal
from resitta.checkpoint.tree import same
from resitta.errors import BadState

STEPS = 30
METHODS: dict[str, dict[str, Any]] = {
    "resitta": {"capacity": 16, "update_every": 8},
    "note": {"capacity": 16, "update_every": 8},
    "rotta": {"capacity": 16, "update_every": 8},
    "tent": {"lr": 0.01},
}
Route = Callable[[Adapter, nn.Module, Path], Adapter]


def frames(step: int) -> Tensor:
    """A batch of a stream in which cameras fail: black, noisy, NaN, and scenes far brighter than the last."""
    images = pictures(8, seed=step)
    if step % 6 == 2:
        images[:7] = 0
    if step % 6 == 4:
        images[2:] = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(step))
    if step % 5 == 3:
        images[0] = torch.nan
    return images * 0.3 + 0.7 if step % 10 > 6 else images


def new(model: nn.Module, method: str, **options: Any) -> Adapter:
    guard = options.pop("guard", Guard(window=8, max_drift=0.06, max_sample_entropy=1.0))
    return adapt(model, method, seed=3, non_finite="skip", guard=guard, **METHODS[method], **options)


def run(adapter: Adapter, first: int = 0) -> list[Tensor]:
    return [adapter(frames(step)) for step in range(first, STEPS)]


def by_state_dict(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    other = new(model, adapter.method.name)
    run(other, STEPS - 5)
    other.load_state_dict(adapter.state_dict())
    return other


def by_restore(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    adapter.save(folder / "x")
    other = new(model, adapter.method.name)
    run(other, STEPS - 5)
    other.restore(folder / "x")
    return other


def by_load(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    adapter.save(folder / "x")
    return resitta.load(model, folder / "x")


def by_recover(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    autosave = Autosave(folder, updates=1)
    autosave.save(adapter)
    autosave.close()
    return resitta.recover(model, folder)


def by_copy(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    return copy.deepcopy(adapter)


def by_pickle(adapter: Adapter, model: nn.Module, folder: Path) -> Adapter:
    again: Adapter = pickle.loads(pickle.dumps(adapter))
    return again


ROUTES = [by_state_dict, by_restore, by_load, by_recover, by_copy, by_pickle]


@functools.cache
def uninterrupted(method: str) -> tuple[Adapter, list[Tensor]]:
    whole = new(small_network(), method)
    return whole, run(whole)


@pytest.mark.parametrize("method", METHODS)
def test_the_stream_has_frames_to_reject_and_updates_to_roll_back(method: str) -> None:
    guard = uninterrupted(method)[0].guard
    assert guard is not None
    if method != "tent":
        assert guard.counts["unknown"] > 30
        assert guard.counts.total() > guard.counts["unknown"] + 2


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("method", METHODS)
def test_from_any_point_of_a_stream_it_goes_on_bit_for_bit(
    model: nn.Module, tmp_path: Path, route: Route, method: str
) -> None:
    whole, expected = uninterrupted(method)
    assert whole.guard is not None
    walker = new(model, method)
    every = method == "resitta" and route is by_state_dict  # the other routes hold the same state
    for step in range(0, STEPS, 1 if every else 7):
        while step > seen(walker):
            walker(frames(seen(walker)))
        other = route(walker, model, tmp_path)
        found = run(other, step)
        assert all(map(torch.equal, found, expected[step:])), f"interrupted before step {step}"
        assert other.guard is not None
        assert other.guard.counts == whole.guard.counts
        assert same(other.state_dict(), whole.state_dict())


def seen(adapter: Adapter) -> int:
    """How many batches of the stream an adapter has seen; a NaN frame is not counted among its samples."""
    counts = [sum(7 if past % 5 == 3 else 8 for past in range(step)) for step in range(STEPS + 1)]
    return counts.index(adapter.samples)


GO_ON = """
import sys, torch
from pathlib import Path
sys.path[:0] = sys.argv[2:3]
import resitta
from tests.conftest import small_network
from tests.monitor.guard.test_going_on import run, seen
torch.set_num_threads(1)
adapters = [resitta.load(small_network(), Path(sys.argv[1]) / "x"), resitta.recover(small_network(), sys.argv[1])]
torch.save([run(adapter, seen(adapter)) for adapter in adapters], Path(sys.argv[1]) / "found")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_another_process_goes_on_bit_for_bit(model: nn.Module, tmp_path: Path) -> None:
    adapter = new(model, "resitta")
    for step in range(14):
        adapter(frames(step))
    by_recover(adapter, model, tmp_path)
    adapter.save(tmp_path / "x")
    expected = run(adapter, 14)
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", GO_ON, str(tmp_path), root], check=True, timeout=100, cwd=root)
    for found in torch.load(tmp_path / "found"):
        assert all(map(torch.equal, found, expected))


def push(adapter: Adapter) -> None:
    """Move the statistics far away: a collapse that the guard has not seen yet."""
    for name, buffer in adapter.learner.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(5)


@pytest.mark.parametrize("route", [by_state_dict, by_load, by_copy])
def test_what_is_loaded_is_not_healthy_because_it_was_loaded(model: nn.Module, tmp_path: Path, route: Route) -> None:
    adapter = new(model, "resitta", guard=Guard(window=8, max_sample_entropy=1.0))
    states = []
    for step in range(10):
        adapter(frames(step))
        states.append(learned(adapter))
    push(adapter)
    other = route(adapter, model, tmp_path)
    for each in (adapter, other):
        each(pictures(8, seed=99))
        assert each.guard is not None
        assert each.guard.counts["drift"] == 1
    assert same(learned(other), learned(adapter))
    assert any(same(learned(other), state) for state in states)


def test_a_state_without_a_guard_is_trusted_only_in_time(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, fresh = new(model, "resitta", guard=False), new(model, "resitta", guard=False)
    run(plain)
    guarded = new(model, "resitta")
    with caplog.at_level(logging.WARNING, "resitta"):
        guarded.load_state_dict(plain.state_dict())
    assert "saved without a guard: the guard begins anew, and goes back to the source" in caplog.text
    assert same(learned(guarded), learned(plain))
    push(guarded)
    guarded(frames(1))
    assert same(learned(guarded), learned(fresh)), "nothing but the source was known to be healthy"


def test_a_part_of_a_state_is_not_taken_for_the_guards(model: nn.Module) -> None:
    adapter, other = new(model, "resitta"), new(model, "resitta")
    run(adapter)
    run(other, STEPS - 5)
    other.load_state_dict(learned(adapter), strict=False)
    hook = next(p for p in other.learner.parameters() if p.requires_grad).register_hook(lambda g: g * torch.nan)  # type: ignore[no-untyped-call]
    other(pictures(8))
    hook.remove()
    assert other.guard is not None
    assert other.guard.counts["non-finite"] == 1
    assert same(learned(other), learned(adapter)), "the broken update went back to what was loaded"


def test_a_file_of_an_older_version_loads(model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapter = new(model, "resitta")
    run(adapter)
    adapter.save(tmp_path / "x")
    document = read(tmp_path / "x")
    del document["state"]["_extra_state"]["guard"]
    (tmp_path / "x").write_bytes(seal(document))
    other = resitta.load(model, tmp_path / "x")
    assert "saved without a guard" in caplog.text
    assert same(learned(other), learned(adapter))
    other(frames(0))


def test_a_guarded_state_in_an_adapter_without_one(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    adapter, plain = new(model, "resitta"), new(model, "resitta", guard=False)
    run(adapter)
    plain.load_state_dict(adapter.state_dict())
    assert "saved with a guard, this adapter has none" in caplog.text
    assert same(learned(plain), learned(adapter))
    assert "guard" not in plain.state_dict()["_extra_state"]


def test_a_guards_state_is_checked_and_a_bad_one_changes_nothing(model: nn.Module) -> None:
    adapter = new(model, "resitta")
    run(adapter)
    before = adapter.state_dict()
    for spoil, message in SPOILED:
        state = copy.deepcopy(before)
        spoil(state["_extra_state"]["guard"])
        with pytest.raises(BadState, match=message):
            adapter.load_state_dict(state)
        assert same(adapter.state_dict(), before)


def snapshot_of(guard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = guard["case"]["history"]["snapshots"][0]
    return found


SPOILED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda g: g["case"]["window"]["usage"].fill_(torch.nan), "shares that are negative or not finite"),
    (lambda g: g["case"]["window"].update(entropy=torch.zeros(3)), "window has the shapes"),
    (lambda g: g["case"]["company"].fill_(2), "share of unknown samples is 2"),
    (lambda g: g["case"]["opinion"].update(weight=-1.0), "opinion has the weight -1"),
    (lambda g: g["episodes"].update(clock=-5), "has counted -5"),
    (lambda g: g["episodes"]["counts"].update(unknown=0.5), "has counted 0.5"),
    (lambda g: g["case"]["history"].update(parts=[0, 0, 9]), "index out of range"),
    (lambda g: snapshot_of(g).update(samples=-1), "count of samples is -1"),
    (lambda g: snapshot_of(g)["learner"].popitem(), "Missing key"),
    (lambda g: snapshot_of(g)["learner"]["bank._extra_state"].update(size=99), "index 16 is out of bounds|holds 99"),
    (
        lambda g: snapshot_of(g)["learner"]["networks.teacher.model.1.layer.running_var"].fill_(-1),
        "a variance below zero",
    ),
    (lambda g: g.pop("case"), "'case'"),
]


def test_a_file_does_not_grow_beyond_what_the_guard_keeps(model: nn.Module, tmp_path: Path) -> None:
    sizes = {}
    for guard in (False, Guard(window=8, max_sample_entropy=1.0)):
        adapter = new(model, "resitta", guard=guard)
        adapter.save(tmp_path / "fresh")
        run(adapter)
        adapter.save(tmp_path / "used")
        sizes[bool(guard)] = [(tmp_path / name).stat().st_size for name in ("fresh", "used")]
    assert sizes[True][0] < 2 * sizes[False][0], "nothing learned: the same tensors, described twice"
    assert sizes[True][1] < 4.2 * sizes[False][1]
