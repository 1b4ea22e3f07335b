"""Values that no adapter has are refused, whoever sealed the file, and leave the adapter as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import Adapter
from resitta.checkpoint.format import read, seal
from resitta.errors import BadState

Images = Callable[..., Tensor]
Same = Callable[[Any, Any], bool]
State = dict[str, Any]
BANK, OPTIMIZER = "learner.bank._extra_state", "learner.networks.optimizer._extra_state"
VAR = "learner.networks.teacher.model.1.layer.running_var"
WEIGHT = "learner.networks.student.model.1.layer.weight"


def moments(state: State) -> State:
    found: State = state[OPTIMIZER]["state"][0]
    return found


RESITTA: dict[str, tuple[Callable[[State], Any], str]] = {
    "negative samples": (lambda s: s["_extra_state"].update(samples=-1), "count of samples is -1"),
    "entropies": (lambda s: s["_extra_state"].update(entropies=torch.zeros(3)), r"have the shape \(3,\)"),
    "no entropies": (lambda s: s["_extra_state"]["entropies"].fill_(torch.nan), "sums of entropies holds values"),
    "updates": (lambda s: s["learner._extra_state"].update(updates=0.5), "count of updates is 0.5"),
    "variance": (lambda s: s[VAR].fill_(-1), "networks.teacher.model.1 has a variance below zero"),
    "infinite variance": (lambda s: s[VAR].fill_(torch.inf), "variance holds values that are not finite"),
    "weight": (lambda s: s[WEIGHT].fill_(torch.nan), "model.1.layer.weight holds values that are not finite"),
    "size": (lambda s: s[BANK].update(size=65), "bank holds 65 samples, its capacity is 64|out of bounds"),
    "negative size": (lambda s: s[BANK].update(size=-1), "count of bank size is -1"),
    "clock": (lambda s: s[BANK].update(clock=3), "negative or equal ages"),
    "equal births": (lambda s: s[BANK]["births"].fill_(5), "negative or equal ages"),
    "negative birth": (lambda s: s[BANK]["births"][:1].fill_(-1), "negative or equal ages"),
    "label": (lambda s: s[BANK]["all_labels"].fill_(5), "labels .5, 5, .*there are 5 classes"),
    "negative label": (lambda s: s[BANK]["all_labels"][:1].fill_(-2), "there are 5 classes|negative"),
    "classes": (lambda s: s[BANK].update(classes=2**40), "there are 1099511627776 classes"),
    "entropy": (lambda s: s[BANK]["all_entropies"].fill_(torch.nan), "entropies that are negative or not finite"),
    "float labels": (lambda s: s[BANK].update(all_labels=s[BANK]["all_labels"].float()), "float32 values|float"),
    "images": (lambda s: s[BANK].update(images=s[BANK]["images"][:9]), r"images of shape \(9, 3, 10, 10\)"),
    "dark images": (lambda s: s[BANK]["images"].fill_(torch.nan), "bank images holds values that are not finite"),
    "moments": (lambda s: moments(s)["exp_avg"].fill_(torch.inf), "exp_avg holds values that are not finite"),
    "squares": (lambda s: moments(s)["exp_avg_sq"].fill_(-1), "exp_avg_sq is below zero"),
    "step": (lambda s: moments(s)["step"].fill_(-7), "step is below zero"),
    "shape": (lambda s: moments(s).update(exp_avg=torch.zeros(3)), r"exp_avg is \(3,\) instead of .* \(8,\)"),
    "a moment is missing": (lambda s: moments(s).pop("exp_avg_sq"), r"only \['exp_avg', 'step'\] of a parameter"),
    "a stranger": (lambda s: s[OPTIMIZER]["state"].update({99: moments(s)}), "a parameter that it does not train"),
    "rate": (lambda s: s[OPTIMIZER]["param_groups"][0].update(lr=float("nan")), "the setting lr nan"),
    "betas": (lambda s: s[OPTIMIZER]["param_groups"][0].update(betas=(0.9,)), r"the setting betas \(0.9,\)"),
    "begun": (lambda s: s["learner.shift._extra_state"].update(begun=-1), "count of shift begun is -1"),
    "looks": (lambda s: s["learner.shift._extra_state"]["mean"].fill_(torch.nan), "no finite float64 numbers"),
    "spread": (lambda s: s["learner.shift._extra_state"]["variance"].fill_(-1), "shift has a variance below zero"),
}
NOTE: dict[str, tuple[Callable[[State], Any], str]] = {
    "seen": (lambda s: s[BANK].update(seen={}), "samples of class .*, and has seen 0"),
    "seen of no class": (lambda s: s[BANK]["seen"].update({"cat": 3}), "count of bank labels seen is 'cat'"),
    "seen less than none": (lambda s: s[BANK]["seen"].update({0: -3}), "samples seen of a class is -3"),
}


def refuses(adapter: Adapter, other: Adapter, path: Path, spoil: Callable[[State], Any], message: str) -> None:
    """Spoil what an adapter saves; another must refuse it, as a file and as a state."""
    adapter.save(path)
    document = read(path)
    spoil(document["state"])
    path.write_bytes(seal(document))
    with pytest.raises(BadState, match=message):
        other.restore(path)
    with pytest.raises(BadState, match=message):
        other.load_state_dict(document["state"])
    with pytest.raises(BadState, match=message):
        resitta.load(other.source.model, path)


@pytest.mark.parametrize("case", RESITTA)
def test_resitta(model: nn.Module, images: Images, identical: Same, tmp_path: Path, case: str) -> None:
    adapter, other = (resitta.adapt(model, "resitta", reset_on_shift=2.0) for _ in range(2))
    adapter(images(150))
    other(images(70, seed=1))
    before = other.state_dict()
    refuses(adapter, other, tmp_path / "x", *RESITTA[case])
    assert identical(other.state_dict(), before)


@pytest.mark.parametrize("case", NOTE)
def test_note(model: nn.Module, images: Images, identical: Same, tmp_path: Path, case: str) -> None:
    adapter, other = resitta.adapt(model, "note"), resitta.adapt(model, "note")
    adapter(images(150))
    before = other.state_dict()
    refuses(adapter, other, tmp_path / "x", *NOTE[case])
    assert identical(other.state_dict(), before)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("method", ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"])
def test_whatever_an_adapter_has_become_is_accepted(model: nn.Module, images: Images, method: str, guard: bool) -> None:
    adapter = resitta.adapt(model, method, guard=guard)
    for n in (0, 1, 40, 150):
        if n:
            adapter(images(n, seed=n))
        resitta.adapt(model, method, guard=guard).load_state_dict(adapter.state_dict())


def test_a_broken_adapter_can_be_copied_but_not_loaded(model: nn.Module, images: Images) -> None:
    adapter = resitta.adapt(model, "tent")
    next(adapter.learner.parameters()).data.fill_(torch.nan)
    twin = __import__("copy").deepcopy(adapter)
    assert next(twin.learner.parameters()).isnan().all()
    with pytest.raises(BadState, match="not finite"):
        resitta.adapt(model, "tent").load_state_dict(adapter.state_dict())
    with pytest.raises(BadState, match="does not fit"):
        adapter.load_state_dict({})  # and goes back to the state it had, whatever that is worth


def test_a_buffer_of_ones_own_may_be_infinite(model: nn.Module) -> None:
    adapter, other = resitta.adapt(model, "tent"), resitta.adapt(model, "tent")
    for each in (adapter, other):
        each.learner.register_buffer("best", torch.tensor(torch.inf))
    other.load_state_dict(adapter.state_dict())
