import time
from pathlib import Path

import pytest
from tests.conftest import small_network, stream

import resitta
from resitta.errors import NotSaved
from resitta.serve import stream_saver
from resitta.serve.events import Events
from resitta.serve.stream_saver import StreamSaver


def saver(folder: Path, every: float) -> StreamSaver:
    made = resitta.fleet(small_network(), "resitta", folder=folder, autosave=None)
    for name in "abc":
        made[name](stream(2))
    return StreamSaver(made, Events(), every=every)


def saved(folder: Path) -> list[str]:
    return sorted(path.stem[-1] for path in folder.glob("stream-*.safetensors"))


def test_each_stream_is_saved_when_it_has_waited_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = saver(tmp_path, every=60)
    made.note("b")
    now = 130.0
    made.note("a")
    made.note("b")  # waits already
    made.save_due()
    assert saved(tmp_path) == []
    now = 160.0
    made.save_due()
    assert saved(tmp_path) == ["b"]
    now = 190.0
    made.save_due()
    assert saved(tmp_path) == ["a", "b"]


def test_saving_many_streams_leaves_time_for_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = saver(tmp_path, every=0.0)
    monkeypatch.setattr(stream_saver, "AT_ONCE", 1e-9)
    for name in "abc":
        made.note(name)
    for count in (1, 2, 3):
        made.save_due()
        assert len(saved(tmp_path)) == count


def test_what_cannot_be_saved_is_tried_again_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = saver(tmp_path, every=0.01)
    with monkeypatch.context() as disk:

        def fail(*_: object) -> None:
            raise NotSaved("the disk is full")

        disk.setattr("resitta.fleets.files.store.save", lambda *_, **__: fail())
        for name in "ab":
            made.note(name)
        while made.failures.count < 4:
            made.save_due()
    while len(saved(tmp_path)) < 2:
        made.save_due()
    texts = [event.text for event in made.failures.events.newest()]
    assert len(texts) == 2
    assert texts[1] == "the state is not saved: the disk is full"
    assert texts[0].startswith("saving works again, stream")
