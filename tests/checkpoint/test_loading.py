import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import method as method_module
from resitta.checkpoint.format import read, seal
from resitta.errors import BadState, ResittaError, UnsuitableModel
from resitta.monitor.guard import Guard
from resitta.training.strong_view import identity

Images = Callable[..., Tensor]
Same = Callable[[Any, Any], bool]
METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", [0, 40, 150])
def test_every_method_goes_on_bit_for_bit(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path, *, method: str, before: int
) -> None:
    views: dict[str, Any] = {"views": 2} if method == "cotta" else {}
    adapter = resitta.adapt(model, method, seed=5, **views)
    if before:
        adapter(images(before))
    adapter.save(tmp_path / "x")
    other = resitta.load(copy.deepcopy(model), tmp_path / "x")
    assert other.method == adapter.method
    for step in range(3):
        batch = images(70, seed=step)
        assert torch.equal(other(batch), adapter(batch))
    assert identical(other.state_dict(), adapter.state_dict())
    assert other.stats == adapter.stats
    adapter.reset()
    other.reset()
    assert identical(other.state_dict(), adapter.state_dict())


def test_all_nine_are_tested() -> None:
    assert set(METHODS) <= set(resitta.list_methods())


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "rbn", "refresh": True},
        {"norm": "adbn", "compare_uncertainty": False},
        {"train": "all", "per_sample": True},
        {"precision": "bf16", "cuda_graphs": False},
        {"non_finite": "skip", "normalized": ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), "seed": 11},
        {"guard": Guard(action="reset", window=77)},
    ],
)
def test_settings_and_options_are_in_the_file(
    model: nn.Module, images: Images, tmp_path: Path, settings: dict[str, Any]
) -> None:
    adapter = resitta.adapt(model, "resitta", **settings)
    adapter(images(150))
    adapter.save(tmp_path / "x")
    other = resitta.load(model, tmp_path / "x")
    assert other.method == adapter.method
    for name in ("seed", "non_finite", "precision", "cuda_graphs"):
        assert getattr(other.options, name) == getattr(adapter.options, name)
    assert torch.equal(other(images(150, seed=2)), adapter(images(150, seed=2)))
    if adapter.guard is not None:
        assert other.guard is not None
        assert other.guard.guard == adapter.guard.guard


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precision_is_kept(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path, dtype: torch.dtype
) -> None:
    adapter = resitta.adapt(model.to(dtype), "resitta")
    adapter(images(150).to(dtype))
    adapter.save(tmp_path / "x")
    other = resitta.load(model, tmp_path / "x")
    assert torch.equal(other(images(70).to(dtype)), adapter(images(70).to(dtype)))
    assert identical(other.state_dict(), adapter.state_dict())


class Wrapped(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


def logits_of(answer: Any) -> Tensor:
    found: Tensor = answer["logits"]
    return found


def test_functions_are_passed_again(model: nn.Module, images: Images, tmp_path: Path) -> None:
    wrapped = Wrapped(model)
    adapter = resitta.adapt(wrapped, "resitta", strong_view=identity, output=logits_of)
    adapter(images(150))
    adapter.save(tmp_path / "x")
    other = resitta.load(wrapped, tmp_path / "x", strong_view=identity, output=logits_of)
    assert torch.equal(other(images(150, seed=2)), adapter(images(150, seed=2)))
    with pytest.raises(
        BadState, match=r"with a function or a detector as strong_view; pass it again: .*strong_view=\.\.\."
    ):
        resitta.load(wrapped, tmp_path / "x", output=logits_of)
    with pytest.raises(BadState, match="a function or a detector as output"):
        resitta.load(wrapped, tmp_path / "x", strong_view=identity)
    with pytest.raises(
        BadState, match=r"lr does not belong .*only functions and detectors are passed again \(strong_view, output\)"
    ):
        resitta.load(wrapped, tmp_path / "x", strong_view=identity, output=logits_of, lr=1)


def test_a_key_for_the_output_is_in_the_file(model: nn.Module, images: Images, tmp_path: Path) -> None:
    resitta.adapt(Wrapped(model), "resitta", output="logits").save(tmp_path / "x")
    assert resitta.load(Wrapped(model), tmp_path / "x")(images(3)).shape == (3, 5)
    with pytest.raises(BadState, match="it needs no functions"):
        resitta.load(Wrapped(model), tmp_path / "x", output=logits_of)


def test_another_model_is_refused(model: nn.Module, images: Images, tmp_path: Path) -> None:
    resitta.adapt(model, "resitta").save(tmp_path / "x")
    body = list(model.children())[:-1]
    with pytest.raises(BadState, match=r"another model \(other names or shapes\); load it with that one"):
        resitta.load(nn.Sequential(*body, nn.Linear(12, 7)), tmp_path / "x")
    with pytest.raises(BadState, match="other weights or another precision of this model; load those first"):
        resitta.load(nn.Sequential(*body, nn.Linear(12, 5)), tmp_path / "x")
    with pytest.raises(UnsuitableModel, match="must be a torch.nn.Module"):
        resitta.load("model", tmp_path / "x")  # type: ignore[arg-type]


def test_a_method_that_is_not_there_is_named(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @resitta.register("mine")
    @dataclass(frozen=True, kw_only=True)
    class Mine(resitta.methods.Tent):
        pass

    resitta.adapt(model, "mine").save(tmp_path / "x")
    assert isinstance(resitta.load(model, tmp_path / "x").method, Mine)
    monkeypatch.delitem(method_module._methods, "mine")
    with pytest.raises(BadState, match="no method is called 'mine'.*if the method is your own, import it first"):
        resitta.load(model, tmp_path / "x")


def test_flips_and_cuts_never_give_an_adapter(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path
) -> None:
    path, rng = tmp_path / "x", random.Random(0)
    adapter = resitta.adapt(model, "note", capacity=4)
    adapter(images(70))
    adapter.save(path)
    good, running = path.read_bytes(), adapter.state_dict()
    for case in range(600):
        spoiled = bytearray(good)
        if case % 3:
            for position in rng.sample(range(len(good)), rng.choice([1, 1, 1, 2, 100])):
                spoiled[position] ^= rng.randrange(1, 256)
        else:
            del spoiled[rng.randrange(len(good)) :]
        path.write_bytes(spoiled)
        with pytest.raises(BadState):
            resitta.load(model, path) if case % 2 else adapter.restore(path)
    assert identical(running, adapter.state_dict())


ODD: list[Any] = [None, -1, 10**30, 0.5, float("nan"), "", "odd", [], {}, (), torch.zeros(0), torch.ones(3, 2)]


def places(tree: Any) -> list[tuple[Any, Any]]:
    """All pairs of a container and a key in it."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [place for key in keys for place in [(tree, key), *places(tree[key])]]


def test_files_made_by_hand_give_documented_errors_at_most(
    model: nn.Module, images: Images, identical: Same, tmp_path: Path
) -> None:
    path, rng = tmp_path / "x", random.Random(0)
    saved, adapter = resitta.adapt(model, "note", capacity=4), resitta.adapt(model, "note", capacity=4)
    saved(images(70))
    saved.save(path)
    good, running = path.read_bytes(), adapter.state_dict()
    refused = 0
    for case in range(400):
        path.write_bytes(good)
        document = read(path)
        container, key = rng.choice(places(document))
        if rng.random() < 0.3 and isinstance(container, dict):
            del container[key]
        else:
            container[key] = rng.choice(ODD)
        path.write_bytes(seal(document))
        try:
            resitta.load(model, path) if case % 2 else adapter.restore(path)
        except ResittaError:
            refused += 1
            assert identical(running, adapter.state_dict())
        adapter.load_state_dict(running)
    assert refused > 200
