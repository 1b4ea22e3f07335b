import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.checkpoint import io
from resitta.checkpoint.format import read, seal
from resitta.errors import BadState, MissingExtra, NotSaved

Images = Callable[..., Tensor]
Same = Callable[[Any, Any], bool]


def test_the_file_says_what_it_is(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "tent", lr=0.01, seed=3, non_finite="skip", normalized=((0.5,), (0.25,)))
    adapter(images(20))
    adapter.save(tmp_path / "x")
    found = read(tmp_path / "x")
    assert found["format"] == 1
    assert found["resitta"] == resitta.__version__
    assert found["method"] == "tent"
    assert found["settings"].items() >= {"lr": 0.01, "loss": "entropy", "norm": "batch"}.items()
    given = {"seed": 3, "non_finite": "skip", "output": None, "normalized": ([0.5], [0.25])}
    rest = {"precision": "exact", "cuda_graphs": True, "background": False, "classes": None}
    rest |= {"shadow": None, "fallback": False}
    assert found["options"] == {**given, **rest}
    assert set(found["model"]) == {"structure", "content"}
    assert json.loads(json.dumps(found["model"])) == found["model"]


@pytest.mark.parametrize("method", ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"])
def test_restore_goes_on_bit_for_bit(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path, method: str
) -> None:
    adapter, other = resitta.adapt(model, method), resitta.adapt(model, method)
    adapter(images(150))
    other(images(90, seed=1))
    adapter.save(tmp_path / "x")
    other.restore(tmp_path / "x")
    assert identical(other.state_dict(), adapter.state_dict())
    assert torch.equal(other(images(150, seed=2)), adapter(images(150, seed=2)))


def reseal(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = read(path)
    change(document)
    path.write_bytes(seal(document))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9] + b"damaged!!"), "damaged"),
        (lambda path: path.write_bytes(b"anything"), "not a safetensors file"),
        (lambda path: path.unlink(), "there is no state at"),
        (lambda path: reseal(path, lambda d: d.update(format=2)), "has format 2 of .*this one reads up to 1; upgrade"),
        (lambda path: reseal(path, lambda d: d.pop("state")), "has no 'state' of an adapter in it"),
        (lambda path: reseal(path, lambda d: d["model"].update(content="0")), "other weights or another precision"),
        (lambda path: reseal(path, lambda d: d["model"].update(structure="0")), "another model"),
        (
            lambda path: reseal(path, lambda d: d.update(method="tent")),
            "saved with method 'tent', this adapter has 'resitta'",
        ),
        (
            lambda path: reseal(path, lambda d: d["settings"].update(lr=9.0)),
            "lr 9.0, this adapter has 0.001; use resitta",
        ),
        (lambda path: reseal(path, lambda d: d["options"].update(output=1)), "output 1, this adapter has None"),
        (lambda path: reseal(path, lambda d: d["state"].pop("learner.bank._extra_state")), "does not fit this resitta"),
    ],
)
def test_what_does_not_fit_leaves_the_running_adapter_as_it_was(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path, *, spoil: Callable[[Path], Any], message: str
) -> None:
    adapter, other = resitta.adapt(model, "resitta"), resitta.adapt(model, "resitta")
    adapter(images(150))
    adapter.save(tmp_path / "x")
    other(images(90, seed=1))
    before = other.state_dict()
    spoil(tmp_path / "x")
    with pytest.raises(BadState, match=message):
        other.restore(tmp_path / "x")
    assert identical(before, other.state_dict())


def test_no_file_is_left_or_changed_by_a_save_that_fails(
    model: nn.Module, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.save(tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    adapter(images(20))
    with pytest.raises(NotSaved, match=r"No space left on device\): it takes [\d,]+ bytes; make room on the disk"):
        adapter.save(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
    adapter.restore(tmp_path / "x")
    assert adapter.samples == 0


def test_the_fingerprint_follows_a_conversion(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter.save(tmp_path / "x")
    adapter.double()
    adapter(images(70).double())
    adapter.save(tmp_path / "y")
    with pytest.raises(BadState, match="another precision"):
        adapter.restore(tmp_path / "x")
    assert resitta.load(copy.deepcopy(model).double(), tmp_path / "y").samples == 70


def test_without_safetensors_the_extra_is_named(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter.save(tmp_path / "x")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    for use in (adapter.save, adapter.restore):
        with pytest.raises(MissingExtra, match=r"pip install .*\[state\]"):
            use(tmp_path / "x")


def test_another_number_of_classes_is_noticed_by_load_state_dict(model: nn.Module, images: Images) -> None:
    wider = nn.Sequential(*list(model.children())[:-1], nn.Linear(12, 7))
    adapter, other = resitta.adapt(model, "resitta"), resitta.adapt(wider, "resitta")
    other(images(70))
    with pytest.raises(BadState, match="other names or shapes, or other classes"):
        adapter.load_state_dict(other.state_dict())


def brighter(images: Tensor) -> Tensor:
    return images * 1.1


@pytest.mark.parametrize("views", [(None, brighter), (brighter, None)])
def test_a_state_with_other_functions_is_refused(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path, views: tuple[Any, Any]
) -> None:
    adapter, other = (resitta.adapt(model, "resitta", strong_view=view) for view in views)
    adapter(images(70))
    adapter.save(tmp_path / "x")
    before = other.state_dict()
    names = ["None" if view is None else "a function" for view in views]
    message = rf"saved with strong_view {names[0]}, this adapter has {names[1]}; use resitta.load\(model, path\)"
    with pytest.raises(BadState, match=message):
        other.restore(tmp_path / "x")
    assert identical(before, other.state_dict())


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ({"seed": 3}, {}, "saved with seed 3, this adapter keeps its own: 0"),
        ({"precision": "bf16"}, {}, "saved with precision 'bf16', this adapter keeps its own: 'exact'"),
        ({}, {"non_finite": "skip"}, "saved with non_finite 'raise', this adapter keeps its own: 'skip'"),
        (
            {"guard": resitta.Guard(window=9)},
            {"guard": resitta.Guard(action="warn")},
            "saved with guard action='rollback', window=9, this adapter keeps its own: action='warn', window=1000",
        ),
    ],
)
def test_options_that_differ_are_told(
    model: nn.Module,
    images: Images,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    theirs: dict[str, Any],
    ours: dict[str, Any],
    message: str,
) -> None:
    adapter, other = resitta.adapt(model, "resitta", **theirs), resitta.adapt(model, "resitta", **ours)
    adapter(images(70))
    adapter.save(tmp_path / "x")
    other.restore(tmp_path / "x")
    assert other.samples == 70
    assert [message in record.getMessage() for record in caplog.records] == [True]
    again = resitta.load(model, tmp_path / "x")
    for name in theirs:
        assert getattr(again.options, name) == getattr(adapter.options, name)


def test_equal_options_are_not_worth_a_word(
    model: nn.Module, images: Images, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = resitta.adapt(model, "resitta", seed=2, guard=True)
    adapter.save(tmp_path / "x")
    adapter.restore(tmp_path / "x")
    assert caplog.records == []


def test_further_entries_are_kept_and_returned(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(8))
    io.save(adapter, tmp_path / "state", stream={"name": "gate"})
    assert io.restore(adapter.sibling(), tmp_path / "state")["stream"] == {"name": "gate"}
    assert resitta.load(model, tmp_path / "state").samples == 8
