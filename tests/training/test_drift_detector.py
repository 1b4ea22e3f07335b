"""Any detector of drifts can decide when ResiTTA begins at the source again; it is saved, copied and rolled back."""

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_domain_shift import noisy, photos
from torch import nn

import resitta
from resitta import adapt
from resitta.errors import BadSetting, BadState
from resitta.monitor.guard.snapshot import Snapshot
from resitta.norm.resibn import ResiBN
from resitta.training import drift_detector
from resitta.training.domain_shift import image_statistics
from resitta.training.drift_detector import SHARPNESS, DriftDetector, SharpnessShift


class Jump:
    """Detects a mean of the last 8 values that is far from that of all before, as the detectors of river begin anew."""

    def __init__(self, bound: float = 0.5) -> None:
        self.bound = bound
        self.values: list[float] = []
        self.drift_detected = False

    def update(self, value: float) -> None:
        if self.drift_detected:
            self.values.clear()
        self.values.append(value)
        old, new = self.values[:-8], self.values[-8:]
        self.drift_detected = len(old) >= 8 and abs(sum(new) / 8 - sum(old) / len(old)) > self.bound


class Drawing(Jump):
    """Draws a random number for each value."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(3)

    def update(self, value: float) -> None:
        super().update(value + 0.01 * self.random.random())


def shift_in(adapter: resitta.Adapter) -> SharpnessShift:
    shift = adapter.learner.shift
    assert isinstance(shift, SharpnessShift)
    return shift


def test_the_detector_gets_the_sharpness_of_each_image(model: nn.Module) -> None:
    adapter, batch = adapt(model, "resitta", reset_on_shift=Jump(bound=9)), photos(20)
    adapter(batch[:12])
    adapter(batch[12:])
    assert shift_in(adapter).detector.values == image_statistics(batch)[:, SHARPNESS].tolist()  # type: ignore[attr-defined]


def test_images_that_are_not_finite_are_passed_over() -> None:
    shift, batch = SharpnessShift(Jump()), photos(8)
    batch[3] = torch.nan
    shift(batch)
    assert shift.count == 7


def test_resitta_begins_at_the_source_in_a_new_domain(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", reset_on_shift=Jump(), eta=0.0, update_every=1000)
    for step in range(3):
        adapter(photos(64, seed=step))
    layer = next(layer for layer in adapter.learner.modules() if isinstance(layer, ResiBN))
    layer.statistics()[0].add_(1)
    adapter(noisy(photos(20, seed=7)))
    memory = adapter.learner.memory()
    assert memory is not None
    assert memory.births[: memory.size].min() > 192, "of the new domain only"
    assert torch.equal(layer.statistics()[0], layer.source_mean)


def test_each_learner_has_a_detector_of_its_own(model: nn.Module) -> None:
    given = Jump()
    adapter = adapt(model, "resitta", reset_on_shift=given)
    twin = adapter.sibling()
    adapter(photos(20))
    assert given.values == []
    assert (shift_in(adapter).count, shift_in(twin).count) == (20, 0)
    adapter.reset()
    assert shift_in(adapter).count == 0


@pytest.mark.parametrize("detector", [Jump(), Drawing()])
def test_a_saved_stream_continues_exactly(model: nn.Module, detector: Jump, tmp_path: Path) -> None:
    once = adapt(model, "resitta", reset_on_shift=detector)
    for step in range(3):
        once(photos(40, seed=step))
    once.save(tmp_path / "state.safetensors")
    others = [
        resitta.load(model, tmp_path / "state.safetensors", reset_on_shift=type(detector)()),
        copy.deepcopy(once),
        pickle.loads(pickle.dumps(once)),
    ]
    for step in range(4):
        batch = noisy(photos(30, seed=step)) if step > 1 else photos(30, seed=9 + step)
        logits = once(batch)
        for other in others:
            assert torch.equal(other(batch), logits)
            assert vars(shift_in(other).detector).keys() == vars(shift_in(once).detector).keys()
            assert shift_in(other).detector.values == shift_in(once).detector.values  # type: ignore[attr-defined]
    assert shift_in(once).count < 120, "a change was found, and the detector began anew"


def test_a_file_asks_for_the_detector(model: nn.Module, tmp_path: Path) -> None:
    adapt(model, "resitta", reset_on_shift=Jump()).save(tmp_path / "state")
    for wrong in ({}, {"reset_on_shift": 2.0}):
        with pytest.raises(
            BadState, match=r"a detector as reset_on_shift; pass it again: load\(.*reset_on_shift=\.\.\."
        ):
            resitta.load(model, tmp_path / "state", **wrong)
    with pytest.raises(BadState, match="saved with"):
        adapt(model, "resitta", reset_on_shift=2.0).restore(tmp_path / "state")


def test_a_step_that_fails_leaves_the_detector_as_it_was(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapt(model, "resitta", reset_on_shift=Jump())
    adapter(photos(40))
    before = copy.deepcopy(vars(shift_in(adapter).detector)), shift_in(adapter).count
    memory: Any = adapter.learner.memory()

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    for name in ("fill", "forget_before"):
        with monkeypatch.context() as patch:
            patch.setattr(memory, name, fail)
            with pytest.raises(MemoryError):
                adapter(noisy(photos(40, seed=1)))
        assert (vars(shift_in(adapter).detector), shift_in(adapter).count) == before


def test_a_detector_that_fails_prevents_the_step(model: nn.Module) -> None:
    class Failing(Jump):
        def update(self, value: float) -> None:
            if len(self.values) == 45:
                raise OverflowError
            super().update(value)

    adapter = adapt(model, "resitta", reset_on_shift=Failing(bound=9))
    adapter(photos(40))
    with pytest.raises(OverflowError):
        adapter(photos(40, seed=1))
    assert adapter.samples == shift_in(adapter).count == 40


def test_a_guard_takes_the_detector_back(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", reset_on_shift=Jump(bound=9))
    adapter(photos(30))
    snapshot = Snapshot(adapter)
    adapter(photos(20, seed=1))
    snapshot.restore(adapter)
    assert shift_in(adapter).detector.values == image_statistics(photos(30))[:, SHARPNESS].tolist()  # type: ignore[attr-defined]


def test_no_detector_remembers_more_than_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_detector, "HISTORY", 32)
    shift, batch = SharpnessShift(Jump(bound=9)), photos(40)
    shift(batch)
    known = image_statistics(batch)[16:, SHARPNESS].tolist()
    assert shift.detector.values == known  # type: ignore[attr-defined]
    assert shift.get_extra_state()["values"].tolist() == known


@pytest.mark.parametrize("wrong", [torch.zeros(2, 2), torch.zeros(3), torch.full((3,), torch.nan), torch.zeros(8192)])
def test_a_state_of_another_kind_is_refused(wrong: torch.Tensor) -> None:
    shift = SharpnessShift(Jump())
    shift(photos(10))
    values = wrong if wrong.dtype == torch.float32 and len(wrong) == 3 and not wrong.isnan().any() else wrong.double()
    with pytest.raises(BadState, match="fewer than 8192 finite float64"):
        shift.set_extra_state({"values": values})
    assert shift.count == 10


@pytest.mark.parametrize("wrong", [Jump, len, "ADWIN", object(), 0.0])
def test_other_values_are_refused(model: nn.Module, wrong: Any) -> None:
    with pytest.raises(BadSetting, match="reset_on_shift must be"):
        adapt(model, "resitta", reset_on_shift=wrong)


def test_a_detector_that_cannot_be_copied_is_refused(model: nn.Module) -> None:
    detector: Any = Jump()
    detector.file = open("/dev/null")  # noqa: SIM115
    with detector.file, pytest.raises(BadSetting, match="a Jump cannot be copied"):
        adapt(model, "resitta", reset_on_shift=detector)


@pytest.mark.parametrize("kind", ["ADWIN", "KSWIN", "PageHinkley"])
def test_the_detectors_of_river(model: nn.Module, kind: str, tmp_path: Path) -> None:
    drift: Any = pytest.importorskip("river.drift")

    def make() -> Any:
        settings: dict[str, dict[str, Any]] = {"KSWIN": {"seed": 0, "alpha": 1e-6}, "PageHinkley": {"threshold": 10}}
        return getattr(drift, kind)(**settings.get(kind, {}))

    assert isinstance(make(), DriftDetector)
    adapter, found = adapt(model, "resitta", reset_on_shift=make()), []
    for step in range(10):
        if step == 7:
            adapter.save(tmp_path / "state")
            adapter = resitta.load(model, tmp_path / "state", reset_on_shift=make())
        before = shift_in(adapter).count
        adapter(noisy(photos(64, seed=step)) if step >= 6 else photos(64, seed=step))
        found.append(shift_in(adapter).count < before + 64)
    assert found.index(True) in (6, 7)
