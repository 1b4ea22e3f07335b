"""A guarded adapter: untouched while all is well, rolled back exactly when an update breaks it, saved from collapse."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import stream
from tests.monitor.guard.conftest import EAGER, Watched, pictures
from tests.monitor.guard.test_snapshot import learned
from tests.tools import needed
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from resitta import Adapter, Guard, adapt, check_method, create, list_methods
from resitta.checkpoint.tree import same
from resitta.errors import Collapsed
from resitta.monitor.events import GuardEnded
from resitta.monitor.guard.guard_state import Opinion
from resitta.monitor.guard.health_signs import Window
from resitta.training.come import LOSSES
from resitta.training.network import Network

TRAINING = ["cotta", "note", "pl", "resitta", "rotta", "tent"]
Make = Callable[..., Watched]


@pytest.mark.parametrize("method", list_methods())
@pytest.mark.parametrize("size", [1, 48, 64, 200])
def test_on_a_healthy_stream_a_guard_changes_nothing(model: nn.Module, watched: Make, method: str, size: int) -> None:
    settings: dict[str, Any] = {"views": 2} if method == "cotta" else needed(method)
    (adapter, fired), plain = watched(method, **settings), adapt(model, method, **settings)
    for batch in torch.split(pictures(70 if size == 1 else 400), size):
        assert torch.equal(adapter(batch), plain(batch))
    assert same(without_guard(adapter), plain.state_dict())
    assert fired == []


@pytest.mark.parametrize("method", list_methods())
def test_guarded_methods_keep_their_promises(method: str) -> None:
    settings: dict[str, Any] = {"views": 2} if method == "cotta" else needed(method)
    check_method(create(method, **settings), guard=True)


@pytest.mark.parametrize("method", TRAINING)
def test_a_broken_gradient_is_rolled_back_and_counted(watched: Make, method: str) -> None:
    (adapter, fired), images = watched(method), stream(192)
    adapter(images[:64])
    before, generator = learned(adapter), adapter.generator.get_state()
    hook = trained(adapter).register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
    assert adapter(images[64:128]).isfinite().all()
    assert same(learned(adapter), before)
    assert torch.equal(adapter.generator.get_state(), generator)
    assert [(event.reason, event.action) for event in fired] == [("non-finite", "rollback")]
    hook.remove()
    adapter(images[128:])
    assert not same(learned(adapter), before)
    assert adapter.guard is not None
    assert adapter.guard.counts["non-finite"] == 1


@pytest.mark.parametrize("method", ["resitta", "rotta"])
def test_a_view_that_breaks_is_rolled_back(watched: Make, method: str) -> None:
    broken: list[bool] = []
    adapter, fired = watched(method, strong_view=lambda images: images / 0 * 0 if broken else images)
    adapter(stream(64))
    before = learned(adapter)
    broken.append(True)
    adapter(stream(64, seed=2))
    assert same(learned(adapter), before)
    assert [event.reason for event in fired] == ["non-finite"]


def test_a_loss_that_is_not_finite_is_enough(watched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "entropy", lambda logits: logits.sum(dim=1) / 0)
    adapter, fired = watched("tent")
    before = learned(adapter)
    adapter(stream(8))
    assert same(learned(adapter), before)  # the count of updates, too
    assert [event.reason for event in fired] == ["non-finite"]


def test_small_batches_go_back_to_the_last_update(watched: Make) -> None:
    (adapter, fired), images = watched("resitta"), stream(160)
    adapter(images[:64])
    before = learned(adapter)
    trained(adapter).register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
    for batch in torch.split(images[64:128], 16):
        adapter(batch)
    assert same(learned(adapter), before)
    assert len(fired) == 1
    assert adapter.samples == 128


@pytest.mark.parametrize("method", TRAINING)
def test_a_collapse_is_rolled_back(watched: Make, method: str) -> None:
    adapter, fired = watched(method, Guard(**EAGER))
    for batch in torch.split(stream(256), 64):
        adapter(batch)
    break_down(adapter)
    for batch in torch.split(stream(640, seed=3), 64):
        adapter(batch)
    assert "diversity" in {event.reason for event in fired}
    labels = adapter(stream(64, seed=4)).argmax(dim=1)
    assert len(labels.unique()) > 1


def test_rollback_goes_to_a_healthy_state(watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER))
    states = []
    for batch in torch.split(stream(320), 64):
        adapter(batch)
        states.append(learned(adapter))
    break_down(adapter)
    broken = learned(adapter)
    while not fired:
        adapter(stream(64, seed=3))
        assert adapter.samples < 2000
    now = learned(adapter)
    assert not same(now, broken)
    assert any(same(now, state) for state in states)


def test_while_the_reason_lasts_nothing_is_learned_and_one_event_tells(watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, max_drift=1e-9))
    adapter(stream(64))
    before = learned(adapter)
    for batch in torch.split(stream(256), 64):
        adapter(batch)
    assert same(learned(adapter), before)
    assert adapter.guard is not None
    assert (len(fired), adapter.guard.counts["drift"]) == (1, 5)
    assert fired[0].value > fired[0].bound == 1e-9


def test_warn_only_tells(model: nn.Module, watched: Make, caplog: pytest.LogCaptureFixture) -> None:
    (adapter, fired), plain = watched("resitta", Guard(**EAGER, action="warn", max_drift=1e-9)), adapt(model, "resitta")
    with caplog.at_level(logging.WARNING, "resitta"):
        for batch in torch.split(stream(192), 64):
            assert torch.equal(adapter(batch), plain(batch))
    assert [(event.reason, event.action) for event in fired] == [("drift", "warn")]
    assert "after 64 samples: drift is" in caplog.text


def test_a_warned_adapter_still_loses_only_the_broken_update(watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, action="warn", max_drift=1e-9))
    for batch in torch.split(stream(192), 64):
        adapter(batch)
    before = learned(adapter)
    trained(adapter).register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
    adapter(stream(64, seed=2))
    assert same(learned(adapter), before)
    assert [event.reason for event in fired] == ["drift", "non-finite"]


def test_reset_returns_to_the_source(model: nn.Module, watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, action="reset", max_drift=1e-9))
    adapter(stream(64))
    assert [event.action for event in fired] == ["reset"]
    assert same(without_guard(adapter), adapt(model, "resitta").state_dict())
    assert adapter.guard is not None
    assert adapter.guard.counts["drift"] == 1, "the reason is told, though the adapter is new"
    adapter.reset()
    assert adapter.guard.counts["drift"] == 0
    assert adapter.guard.totals["drift"] == 1


def test_raise_raises_and_leaves_the_adapter_to_look_at(watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, action="raise", max_drift=1e-9))
    with pytest.raises(Collapsed, match=r"drift is .*, allowed is 1e-09; reset\(\) the adapter"):
        adapter(stream(64))
    assert adapter.stats.updates == 1
    assert [event.action for event in fired] == ["raise"]


def of_one_class(model: nn.Module, n: int) -> Tensor:
    """Images to which a network gives one and the same label."""
    images = stream(4000)
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    return images[labels == labels.mode().values][:n]


def opinion_of(adapter: Adapter) -> Opinion:
    assert adapter.guard is not None
    assert adapter.guard._state is not None
    return adapter.guard._state.opinion


def window_of(adapter: Adapter) -> Window:
    assert adapter.guard is not None
    assert adapter.guard._state is not None
    assert adapter.guard._state.window is not None
    return adapter.guard._state.window


@pytest.mark.parametrize("size", [1, 64])
def test_few_classes_do_not_alarm_where_the_source_agrees(model: nn.Module, watched: Make, size: int) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, max_entropy=1.0), eta=0.5)  # hardly leaves the source
    for batch in torch.split(of_one_class(model, 400), size):
        adapter(batch)
    assert float(window_of(adapter).diversity()) < 1.5, "the labels alone look like a collapse"
    assert adapter.learner.updates >= 5
    assert opinion_of(adapter).formed
    assert opinion_of(adapter).dissent < 0.5
    assert fired == []


@pytest.mark.parametrize("size", [1, 64])
def test_few_classes_alarm_where_the_source_disagrees(watched: Make, size: int) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, max_entropy=1.0, max_drift=100.0, action="warn"))
    adapter(stream(64))
    break_down(adapter)
    for batch in torch.split(stream(256, seed=3), size):
        adapter(batch)
    assert [event.reason for event in fired] == ["diversity"]
    assert opinion_of(adapter).dissent > 0.5


def unsure(model: nn.Module) -> nn.Module:
    """A network that hardly prefers any class."""
    head = list(model.modules())[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.mul_(0.01)
        head.bias.zero_()
    return model


@pytest.mark.parametrize("size", [1, 64])
def test_uncertainty_does_not_alarm_where_the_source_is_as_uncertain(
    model: nn.Module, watched: Make, size: int
) -> None:
    unsure(model)
    adapter, fired = watched("resitta", Guard(**EAGER, min_diversity=1.0))
    for batch in torch.split(stream(256), size):
        adapter(batch)
    assert float(window_of(adapter).entropy) > 0.9, "the entropy alone looks like a collapse"
    assert opinion_of(adapter).entropy > 0.9
    assert fired == []
    assert adapter.learner.updates == 4, "and so it learns"


@pytest.mark.parametrize("size", [1, 64])
def test_uncertainty_alarms_where_the_source_is_certain(watched: Make, size: int) -> None:
    adapter, fired = watched("resitta", Guard(**EAGER, max_drift=100.0, action="warn"))
    adapter(stream(64))
    with torch.no_grad():
        for network in (module for module in adapter.learner.modules() if isinstance(module, Network)):
            for name, value in network.named_parameters():
                if "4.layer" in name:
                    value.zero_()  # the features say nothing any more
    for batch in torch.split(stream(256, seed=3), size):
        adapter(batch)
    assert "entropy" in {event.reason for event in fired}
    assert opinion_of(adapter).entropy < 0.9


def test_the_source_is_not_asked_while_the_signs_are_good(watched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (adapter, _), asked = watched("resitta"), list[Any]()
    monkeypatch.setattr(Opinion, "ask", lambda *args: asked.append(args))
    for batch in torch.split(stream(256), 64):
        adapter(batch)
    assert asked == []


def test_a_reason_that_comes_and_goes_is_told_once_and_its_end_once(watched: Make) -> None:
    adapter, fired = watched("resitta", Guard(window=64, max_sample_entropy=1.0, max_entropy=1.0))
    ended: list[GuardEnded] = []
    adapter.listen(lambda event: ended.append(event) if isinstance(event, GuardEnded) else None)
    good, black = pictures(400), torch.zeros(1, 3, 16, 16)
    for image in good[:150]:
        adapter(black)
        adapter(image[None])
        adapter(image[None])
    assert [(event.reason, event.samples) for event in fired] == [("unknown", 1)]
    assert ended == []
    for image in good[150:400]:
        adapter(image[None])
    assert adapter.guard is not None
    found = adapter.guard.counts["unknown"]
    assert found >= 150
    assert [(event.reason, event.found) for event in ended] == [("unknown", found)]
    assert 447 < ended[0].lasted <= 450 + 64, "from the first black frame to the last sample that was kept out"
    adapter(black)
    assert len(fired) == 2


@pytest.mark.parametrize("method", ["note", "resitta", "rotta"])
def test_unknown_samples_pass_by_as_if_they_had_not_come(model: nn.Module, watched: Make, method: str) -> None:
    (adapter, fired), plain = watched(method), adapt(model, method)
    images, black = pictures(256), torch.zeros(20, 3, 16, 16)
    for batch in torch.split(images, 64):
        answer = adapter(torch.cat([batch[:40], black, batch[40:]]))
        expected = plain(batch)
        assert torch.allclose(torch.cat([answer[:40], answer[60:]]), expected, atol=1e-6)
    assert adapter.guard is not None
    assert adapter.guard.counts["unknown"] == 80
    assert [(event.reason, event.action) for event in fired] == [("unknown", "skip")]
    assert same(plain.learner.memory().ages.tolist(), adapter.learner.memory().ages.tolist())  # type: ignore[union-attr]


def test_where_most_are_unknown_nobody_enters(watched: Make) -> None:
    adapter, _ = watched("resitta")
    adapter(torch.cat([pictures(20), torch.zeros(100, 3, 16, 16)]))
    bank = adapter.stats.bank
    assert bank is not None
    assert bank.occupancy == 0
    adapter(pictures(100, seed=1))
    assert adapter.stats.bank.occupancy == 64  # type: ignore[union-attr]


def test_after_reset_and_load_the_past_is_forgotten(watched: Make) -> None:
    adapter, _ = watched("resitta")
    for batch in torch.split(stream(128), 64):
        adapter(batch)
    later = adapter.state_dict()
    adapter.reset()
    adapter(stream(64, seed=7))
    adapter.load_state_dict(later)
    before = learned(adapter)
    trained(adapter).register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
    adapter(stream(64, seed=8))
    assert same(learned(adapter), before)


@pytest.mark.parametrize("method", list_methods())
def test_a_step_waits_for_the_device_once(model: nn.Module, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that would wait for an accelerator: scalars read one by one, and tensors copied to the host."""
    given = needed(method) | {"label_prior": "none"}  # on the host it reads the logits anyway
    plain = waits(adapt(model, method, **given), monkeypatch)
    guarded = waits(adapt(model, method, guard=True, **given), monkeypatch)
    assert guarded == plain + 1


def waits(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> int:
    adapter(stream(64))
    count = Waits()  # type: ignore[no-untyped-call]
    with monkeypatch.context() as patch, count:
        for name in ("tolist", "numpy"):
            patch.setattr(Tensor, name, count.counting(getattr(Tensor, name)))
        adapter(stream(64, seed=2))
    return count.total


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts reads of tensors by the host, but not those of tensors that are on the host anyway, such as seeds."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point()
        return func(*args, **(kwargs or {}))

    def counting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.total += 1
            return plain(tensor, *args, **kwargs)

        return counted


def test_a_guard_can_be_copied_with_its_adapter(watched: Make) -> None:
    adapter, _ = watched("resitta")
    adapter(stream(64))
    twin = copy.deepcopy(adapter)
    assert torch.equal(twin(stream(64, seed=2)), adapter(stream(64, seed=2)))
    assert twin.guard is not adapter.guard
    assert twin.guard in twin.callbacks


def without_guard(adapter: Adapter) -> dict[str, Any]:
    """An adapter's state as it would be without a guard."""
    state = adapter.state_dict()
    del state["_extra_state"]["guard"]
    return state


def trained(adapter: Adapter) -> nn.Parameter:
    """A parameter that the optimizer moves."""
    return next(p for p in adapter.learner.parameters() if p.requires_grad)


def break_down(adapter: Adapter) -> None:
    """Make every network of an adapter see one class in everything, by the shift of its last BatchNorm layer."""
    head = list(adapter.source.model.modules())[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        labels = adapter.source(stream(640, seed=3)).argmax(dim=1)
        rarest = int(labels.bincount(minlength=5).argmin())
        for network in (module for module in adapter.learner.modules() if isinstance(module, Network)):
            for name, shift in network.named_parameters():
                if name.endswith("4.layer.bias"):
                    shift.copy_((head.weight[rarest] - head.weight.mean(dim=0)).sign() * 100)
