"""Streams in memory and on disk: they come back exactly, also after kill -9."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from tests.fleets.mixed import QUICK, batches, rows, states

import resitta
from resitta.checkpoint.tree import same
from resitta.errors import BadSetting, BadState, NotSaved


def test_streams_go_to_the_folder_and_come_back_exactly(tmp_path: Path, one_thread: None) -> None:
    settings: dict[str, Any] = {"guard": True, "label_prior": "temporal", "updates_per_call": None, **QUICK}
    few = resitta.fleet(small_network(), "resitta", folder=tmp_path, max_streams=2, **settings)
    many = resitta.fleet(small_network(), "resitta", **settings)
    for images, names in batches(streams=4, length=12):
        for pair in (("s0", "s1"), ("s2", "s3")):
            places = [place for place, name in enumerate(names) if name in pair]
            chosen = [names[place] for place in places]
            assert torch.equal(few(images[places], chosen), many(images[places], chosen))
        assert sum(row.in_memory for row in rows(few)) == 2
    assert len(few) == 4
    assert [row.updates for row in rows(few)] == [3] * 4
    for name in many:
        assert same(few[name].adapter.state_dict(), many[name].adapter.state_dict())


def test_a_full_fleet_without_a_folder_says_what_to_do() -> None:
    fleet = resitta.fleet(small_network(), "resitta", max_streams=2, **QUICK)
    images = stream(3)
    fleet(images[:2], ["a", "b"])
    with pytest.raises(
        BadSetting,
        match=r"3 streams would be in memory, max_streams is 2.*folder=, a higher max_streams=, or call",
    ):
        fleet["c"](images)
    with pytest.raises(BadSetting, match="images of 3 streams, max_streams is 2"):
        fleet(images, ["a", "b", "c"])
    assert "c" not in fleet
    fleet.remove("a")
    assert fleet["c"](images).shape == (3, 5)
    assert list(fleet) == ["b", "c"]


def test_a_fleet_continues_from_its_folder(tmp_path: Path, one_thread: None) -> None:
    fed = batches(streams=3, length=10)
    settings: dict[str, Any] = {"updates_per_call": None, "start": "nearest", **QUICK}
    whole = resitta.fleet(small_network(), "resitta", **settings)
    expected = [whole(images, names) for images, names in fed]
    known: list[set[str]] = []
    for part in (fed[:5], fed[5:]):
        with resitta.fleet(small_network(), "resitta", folder=tmp_path, **settings) as fleet:
            known.append(set(fleet))
            logits = [fleet(images, names) for images, names in part]
    assert known == [set(), {"s0", "s1", "s2"}]
    assert torch.equal(logits[-1], expected[-1])
    assert same(states(fleet), states(whole))
    looks = [each.roster.members["s0"].appearance for each in (fleet, whole)]
    assert same(looks[0].state(), looks[1].state())


def test_a_folder_has_one_fleet_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    fleet = resitta.fleet(small_network(), "resitta", folder=tmp_path, **QUICK)
    with pytest.raises(BadSetting, match="keeps its state in"):
        resitta.fleet(small_network(), "resitta", folder=tmp_path, **QUICK)
    fleet(stream(2), ["a", "b"])
    fleet.close()
    path = next(tmp_path.glob("stream-a*"))
    path.write_bytes(path.read_bytes()[:-1])
    again = resitta.fleet(small_network(), "resitta", folder=tmp_path, **QUICK)
    assert again["b"].stats.samples == 1
    with pytest.raises(BadState, match="stream-a.safetensors is truncated"):
        again(stream(2), ["a", "b"])
    assert again["b"].stats.samples == 1
    again.remove("a")
    assert again(stream(2), ["a", "b"]).shape == (2, 5)


def test_a_full_disk_does_not_stop_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    fleet = resitta.fleet(small_network(), "resitta", folder=tmp_path, autosave=1, **QUICK)
    fleet["a"](stream(8))
    path = next(tmp_path.glob("stream-a*"))
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise NotSaved("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("resitta.fleets.files.store.save", full)
        fleet["a"](stream(8))
        assert "autosave of stream 'a' failed" in caplog.text
        with pytest.raises(NotSaved):
            fleet.save()
    assert path.read_bytes() == before
    fleet.close()
    assert path.read_bytes() != before


KILLED = """
import sys, torch, resitta
from tests.fleets.mixed import QUICK, batches
from tests.conftest import small_network
torch.set_num_threads(1)
fleet = resitta.fleet(small_network(), "resitta", folder=sys.argv[1], autosave=1, updates_per_call=1, **QUICK)
while True:
    for images, names in batches(streams=4, length=40):
        fleet(images, names)
        print("fed", flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_every_stream_at_a_state_it_had_saved(tmp_path: Path, one_thread: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    fed = [process.stdout.readline() for _ in range(17)]
    process.kill()
    process.wait(30)
    assert fed == [b"fed\n"] * 17
    saved: dict[str, list[Any]] = {}
    replayed = resitta.fleet(small_network(), "resitta", updates_per_call=1, **QUICK)
    for images, names in batches(streams=4, length=40):
        before = {name: row.samples for name, row in replayed.stats.items()}
        replayed(images, names)
        for name, row in replayed.stats.items():
            if row.samples != before.get(name, 0):
                saved.setdefault(name, []).append(replayed.roster.members[name].here.state_dict())
    found = resitta.fleet(small_network(), "resitta", folder=tmp_path, **QUICK)
    assert set(found) == {"s0", "s1", "s2", "s3"}
    for name in found:
        state = found[name].adapter.state_dict()
        assert any(same(state, known) for known in saved[name]), name
        assert found[name].stats.updates >= 2, "calls 4 to 17 made 14 updates"


def test_a_new_stream_may_start_where_the_nearest_one_is() -> None:
    model, dark = small_network(), 0.1 * torch.rand(200, 3, 10, 10)
    fleets = {start: resitta.fleet(model, "resitta", start=start, **QUICK) for start in ("source", "nearest")}
    for fleet in fleets.values():
        fleet["night"](dark)
        fleet["day"](stream(200))
        fleet["new"](dark[:4])
    night, new = (fleets["nearest"][name].adapter.learner.exportable_network() for name in ("night", "new"))
    assert night is not None
    assert new is not None
    for mine, its in zip(new.parameters(), night.parameters(), strict=True):
        assert torch.equal(mine, its)
    stats = fleets["nearest"]["new"].stats
    assert (stats.samples, stats.updates, stats.bank and stats.bank.occupancy) == (4, 0, 4)
    assert stats.mean_drift > fleets["source"]["new"].stats.mean_drift == 0
    fleets["nearest"]["bright"](torch.ones(4, 3, 10, 10))
    assert fleets["nearest"]["bright"].stats.mean_drift == 0, "nothing known looks like that"


def test_a_stream_whose_file_cannot_be_removed_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = resitta.fleet(small_network(), "resitta", folder=tmp_path, **QUICK)
    fleet["a"](stream(4))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError):
        fleet.remove("a")
    assert fleet.stats["a"].samples == 4
    monkeypatch.undo()
    fleet.remove("a")
    assert "a" not in fleet
