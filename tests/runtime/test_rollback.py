"""A step is all or nothing: it is made to fail at every point in turn."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import resitta
from resitta.checkpoint.tree import same
from resitta.monitor.callbacks import Callback
from resitta.runtime.rollback import Rollback
from resitta.training.optimizer import Adam

METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]
VARIANTS: dict[str, dict[str, Any]] = {
    "all parameters": {"train": "all"},
    "rbn": {"norm": "rbn"},
    "adbn": {"norm": "adbn"},
    "reset_on_shift": {"reset_on_shift": 0.5},
    "refresh": {"refresh": True},
    "random choices": {"compare_uncertainty": False, "drop_overconfident": False},
    "micro-batches": {"micro_batch": 8},
    "anchor": {"anchor": 0.1},
    "bytes": {"bank_bytes": True},
    "guard": {"guard": True},
    "per sample": {"per_sample": True},
}
SMALL: dict[str, dict[str, Any]] = {
    "cotta": {"views": 2},
    **{name: {"capacity": 16, "update_every": 16} for name in ("note", "rotta", "resitta")},
}
MOST = 14
"""So many points of a step are tried."""


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def adapt(model: nn.Module, method: str = "resitta", **options: Any) -> resitta.Adapter:
    return resitta.adapt(model, method, **{**SMALL.get(method, {}), **options})


class Injected(RuntimeError):
    """What is raised on purpose."""


class FailAt(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets the n-th operation of torch fail, or the first one of a name; without either none fails."""

    def __init__(self, point: int = 0, *, name: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.point, self.name, self.count = point, name, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self.point or (self.name and self.name in str(func)):
            raise Injected(f"operation {self.point}, {func}")
        return func(*args, **(kwargs or {}))


class End(Callback):
    """Notes at which operation a step is complete."""

    count = 0

    def __init__(self, mode: FailAt) -> None:
        self.mode = mode

    def after_step(self, adapter: resitta.Adapter, images: Tensor, logits: Tensor) -> None:
        self.count = self.mode.count


def points(adapter: resitta.Adapter, batch: Tensor) -> list[int]:
    """Which operations of a step to let fail: all, or the first, the last, and some in between."""
    with FailAt() as mode:
        end = End(mode)
        adapter.callbacks.insert(0, end)
        adapter(batch)
    every = range(1, end.count + 1)
    some = torch.linspace(1, end.count, MOST).int().tolist()
    return list(every) if len(every) <= MOST else sorted({*every[:4], *some, *every[-4:]})


def everything(adapter: resitta.Adapter) -> dict[str, Any]:
    """The state, and what no file holds."""
    skipped = [module.skipped.clone() for module in adapter.modules() if isinstance(module, Adam)]
    return {**adapter.state_dict(), "skipped": skipped}


def check_every_point(make: Callable[[], resitta.Adapter], batch: Tensor, *after: Tensor) -> resitta.Adapter:
    """Fail at every point, see that nothing has changed, then go on as if nothing had been."""
    adapter, undisturbed = make(), make()
    before = everything(adapter)
    for point in points(make(), batch):
        with FailAt(point), pytest.raises(Injected) as caught:
            adapter(batch)
        assert caught.type is Injected
        assert same(everything(adapter), before), f"a failure of {caught.value} leaves traces"
    for next_batch in (batch, *after):
        assert torch.equal(adapter(next_batch), undisturbed(next_batch))
    assert same(everything(adapter), everything(undisturbed))
    return adapter


def made(model: nn.Module, variant: str, *, steps: int, size: int) -> resitta.Adapter:
    """An adapter after some steps, which has room for its copies."""
    adapter = adapt(model, "resitta" if variant in VARIANTS else variant, **VARIANTS.get(variant, {}))
    for seed in range(steps):
        adapter(images(size, seed))
    return ready(adapter, images(size))


def ready(adapter: resitta.Adapter, batch: Tensor) -> resitta.Adapter:
    with adapter.paused():
        adapter(batch)  # finds out which layout the model takes
    with pytest.raises(Injected), adapter.rollback.unless_complete():
        raise Injected
    return adapter


@pytest.mark.parametrize("variant", [*METHODS, *VARIANTS])
def test_a_step_that_fails_anywhere_changes_nothing(model: nn.Module, variant: str) -> None:
    batches = [images(40, seed=3).mul(0.5), images(20, seed=4), images(20, seed=5)]
    check_every_point(lambda: made(model, variant, steps=3, size=20), *batches)


@pytest.mark.parametrize("variant", METHODS)
def test_the_first_step_is_no_exception(model: nn.Module, variant: str) -> None:
    check_every_point(lambda: made(model, variant, steps=0, size=20), images(20), images(20, seed=1))


@pytest.mark.parametrize("variant", ["note", "rotta", "resitta", "reset_on_shift", "guard", "random choices"])
def test_nor_is_one_that_only_fills_the_memory(model: nn.Module, variant: str) -> None:
    adapter = check_every_point(lambda: made(model, variant, steps=3, size=16), images(5, seed=3), images(5, seed=4))
    assert adapter.learner.updates == 3


@pytest.mark.parametrize("method", ["tent", "resitta"])
def test_nor_is_a_batch_with_nan(model: nn.Module, method: str) -> None:
    batch = images(30, seed=1)
    batch[3] = torch.nan

    def make() -> resitta.Adapter:
        return ready(adapt(model, method, non_finite="skip"), images(4))

    check_every_point(make, batch, images(20, seed=2))
    adapter = make()
    with FailAt() as mode:
        end = End(mode)
        adapter.add_callback(end)
        adapter(batch)
    assert mode.count - end.count == 1, "after the step the logits are put together, in memory that is there"


def test_nor_is_one_that_finds_a_new_domain_between_two_updates(model: nn.Module) -> None:
    def make() -> resitta.Adapter:
        adapter = adapt(model, reset_on_shift=0.5, update_every=100)
        adapter(images(64))
        adapter(images(60, seed=1) * 0.2)
        return ready(adapter, images(4))

    adapter = check_every_point(make, images(5, seed=2) * 0.2)
    learner: Any = adapter.learner
    assert (learner.shift.begun, learner.updates) == (1, 1)


def test_a_method_of_ones_own_is_rolled_back_without_any_code(model: nn.Module) -> None:
    from resitta.methods.tent import Tent, TentLearner

    class Counting(TentLearner):
        seen: Tensor

        def __init__(self, method: Tent, network: Any) -> None:
            super().__init__(method, network)
            self.register_buffer("seen", torch.zeros(()))
            self.batches: list[int] = []
            self.second = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)

        def step(self, images: Tensor) -> Tensor:
            self.batches.append(len(images))
            self.seen += len(images)
            logits = super().step(images)
            for parameter in self.network.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.second.step()
            return logits

        def get_extra_state(self) -> dict[str, Any]:
            return {
                **super().get_extra_state(),
                "batches": self.batches,
                "second": self.second.state_dict(),
            }  # no copies

        def set_extra_state(self, state: dict[str, Any]) -> None:
            super().set_extra_state(state)
            self.batches = list(state["batches"])
            self.second.load_state_dict(copy.deepcopy(state["second"]))

    class Own(Tent):
        def start(self, network: Any, generator: torch.Generator) -> Counting:
            return Counting(self, network)

    check_every_point(lambda: ready(resitta.adapt(model, Own()), images(8)), images(8), images(8, seed=1))


# --- who raises -------------------------------------------------------------------------------------------------------


class Around(nn.Module):
    """A network that may fail."""

    error: list[Exception]

    def __init__(self, net: nn.Module, error: list[Exception]) -> None:
        super().__init__()
        self.net = net
        vars(self)["error"] = error

    def forward(self, x: Tensor) -> Any:
        if torch.is_grad_enabled() and self.error:  # in an update only
            raise self.error[0]
        return self.net(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Around":
        return Around(copy.deepcopy(self.net, memo), self.error)


@pytest.mark.parametrize("error", [RuntimeError("of the model"), torch.OutOfMemoryError("no memory"), KeyError("k")])
@pytest.mark.parametrize("method", ["pl", "tent", "cotta", "note", "rotta", "resitta"])
def test_what_the_model_raises_in_an_update_comes_out_and_a_retry_learns_once(
    model: nn.Module, method: str, error: Exception
) -> None:
    errors: list[Exception] = []
    adapter, plain = adapt(Around(model, errors), method), adapt(Around(model, []), method)
    assert torch.equal(adapter(images(20)), plain(images(20)))
    before = everything(adapter)
    errors.append(error)
    with pytest.raises(type(error)) as caught:
        adapter(images(20, seed=1))
    assert caught.value is error
    assert same(everything(adapter), before)
    errors.clear()
    assert torch.equal(adapter(images(20, seed=1)), plain(images(20, seed=1)))
    assert same(everything(adapter), everything(plain))


@pytest.mark.parametrize("method", ["pl", "tent"])
def test_images_that_are_refused_count_as_no_update(model: nn.Module, method: str) -> None:
    adapter = adapt(model, method)
    with pytest.raises(resitta.errors.BadImages):
        adapter(images(4)[:, :2])
    assert adapter.learner.updates == 0
    with pytest.raises(resitta.errors.BadImages):
        adapter.learner.step(images(4)[:, :2])
    assert adapter.learner.updates == 0


def test_a_guard_does_not_count_unknown_samples_of_steps_that_failed(model: nn.Module) -> None:
    errors: list[Exception] = []
    adapter, plain = (adapt(Around(model, found), guard=True) for found in (errors, []))
    batch = images(40, seed=1)
    batch[:24] = 0.0  # black images are unknown, and where most of the last samples are none is learned from
    for known in (adapter, plain):
        known(images(20))
    errors.append(Injected())
    for _ in range(20):
        with pytest.raises(Injected):
            adapter(batch)
    errors.clear()
    for next_batch in (batch, images(20, seed=2)):
        assert torch.equal(adapter(next_batch), plain(next_batch))
    assert same(everything(adapter), everything(plain))


class Faulty(Callback):
    """A callback that raises in one hook."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def before_step(self, adapter: resitta.Adapter, images: Tensor) -> None:
        if self.hook == "before":
            raise Injected

    def after_step(self, adapter: resitta.Adapter, images: Tensor, logits: Tensor) -> None:
        if self.hook == "after":
            raise Injected


def test_a_watcher_that_raises_before_a_step_prevents_it_and_after_it_does_not(model: nn.Module) -> None:
    adapter, plain, callback = adapt(model, guard=True), adapt(model, guard=True), Faulty("before")
    adapter.add_callback(callback)
    before = everything(adapter)
    with pytest.raises(Injected):
        adapter(images(20))
    assert same(everything(adapter), before)
    callback.hook = "after"
    with pytest.raises(Injected):
        adapter(images(20))
    callback.hook = "none"
    plain(images(20))
    for seed in range(3):
        assert torch.equal(adapter(images(20, seed)), plain(images(20, seed)))
    assert same(everything(adapter), everything(plain))


# --- in the background ------------------------------------------------------------------------------------------------


def test_the_background_keeps_predicting_with_the_last_good_weights(model: nn.Module) -> None:
    errors: list[Exception] = []
    adapter, plain = adapt(Around(model, errors), background=True), adapt(Around(model, []))
    assert torch.equal(adapter(images(20)), plain(images(20)))
    adapter.sync()
    errors.append(RuntimeError("of the model"))
    adapter(images(20, seed=1))
    with pytest.raises(RuntimeError, match="of the model"):
        adapter.sync()
    with adapter.paused(), plain.paused():
        assert torch.equal(adapter(images(9)), plain(images(9)))
    assert same(adapter.state_dict(), plain.state_dict())
    errors.clear()
    for seed in (2, 3):
        assert torch.equal(adapter(images(20, seed)), plain(images(20, seed)))
        adapter.sync()
    assert same(adapter.state_dict(), plain.state_dict())


# --- the mechanism ----------------------------------------------------------------------------------------------------


def test_tensors_come_back_in_place(model: nn.Module) -> None:
    adapter = made(model, "resitta", steps=1, size=20)
    held = {
        name: tensor.data_ptr() for name, tensor in adapter.learner.state_dict().items() if isinstance(tensor, Tensor)
    }
    optimizer: Any = next(module for module in adapter.modules() if isinstance(module, Adam)).adam
    moments = [tensor.data_ptr() for state in optimizer.state.values() for tensor in state.values()]
    bank: Any = adapter.learner.memory()
    stored = bank.images.data_ptr()
    for point in points(made(model, "resitta", steps=1, size=20), images(20)):
        with FailAt(point), pytest.raises(Injected):
            adapter(images(20))
    assert bank.images.data_ptr() == stored
    now = {
        name: tensor.data_ptr() for name, tensor in adapter.learner.state_dict().items() if isinstance(tensor, Tensor)
    }
    assert now == held
    assert [tensor.data_ptr() for state in optimizer.state.values() for tensor in state.values()] == moments
    with FailAt(name="fused_adam"), pytest.raises(Injected):
        adapter(images(20))
    assert all(parameter.grad is None for parameter in adapter.parameters())
    assert not optimizer.param_groups[0]["capturable"]


def test_copies_of_tensors_are_made_once(model: nn.Module) -> None:
    adapter = adapt(model)
    for seed in range(4):
        adapter(images(16, seed))
    rollback: Any = adapter.rollback
    kept = rollback._tensors
    copies = [tensor.data_ptr() for tensor in kept._copies]
    for seed in range(4):
        adapter(images(16, seed))
    assert rollback._tensors is kept
    assert [tensor.data_ptr() for tensor in kept._copies] == copies


@pytest.mark.parametrize("method", ["tent", "resitta"])
@pytest.mark.parametrize("change", ["double", "load", "reset", "copy"])
def test_another_precision_or_state_is_noticed(model: nn.Module, change: str, method: str) -> None:
    batch = images(20, seed=2).double() if change == "double" else images(20, seed=2)

    def make() -> resitta.Adapter:
        adapter = made(model, method, steps=2, size=20)
        state = adapter.state_dict()
        changes: dict[str, Callable[[], Any]] = {
            "double": adapter.double,
            "load": lambda: adapter.load_state_dict(state),
            "reset": adapter.reset,
            "copy": lambda: None,
        }
        changes[change]()
        return ready(copy.deepcopy(adapter) if change == "copy" else adapter, batch)

    check_every_point(make, batch, batch)


def test_what_a_module_shares_is_not_copied(model: nn.Module) -> None:
    adapter = adapt(model)
    adapter(images(20))
    kept: Any = adapter.rollback._tensors
    shared = {parameter.data_ptr() for parameter in model.parameters()}
    assert not shared & {tensor.data_ptr() for tensor in kept._originals}
    assert len(kept._originals) > 20


def test_parameters_that_were_converted_in_place_are_kept_as_they_are() -> None:
    layer = nn.Linear(1, 1)
    rollback = Rollback(layer)
    rollback.keep()
    layer.double()
    layer.weight.data.fill_(1 / 3)
    undo = rollback.keep()
    layer.weight.data.zero_()
    undo()
    assert layer.weight.item() == 1 / 3


def test_without_tensors_only_extra_states_come_back() -> None:
    class Counter(nn.Linear):
        count = 0

        def get_extra_state(self) -> int:
            return self.count

        def set_extra_state(self, state: int) -> None:
            self.count = state

    counter = Counter(1, 1)
    weight = counter.weight.item()
    undo = Rollback(counter).keep(tensors=False)
    counter.count += 1
    counter.weight.data += 1
    undo()
    assert (counter.count, counter.weight.item()) == (0, weight + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", [*METHODS, "all parameters", "reset_on_shift", "anchor"])
def test_recorded_graphs_go_on_with_what_was_rolled_back(model: nn.Module, variant: str) -> None:
    """Once graphs are recorded they hold the addresses of tensors: what comes back must be at the same place."""
    batches = [images(20, seed).mul(0.5).cuda() for seed in range(12)]

    def begun() -> resitta.Adapter:
        adapter = adapt(copy.deepcopy(model).cuda(), "resitta" if variant in VARIANTS else variant, **options)
        for batch in batches[:8]:
            adapter(batch)
        return adapter

    options = VARIANTS.get(variant, {})
    adapter, undisturbed = begun(), begun()
    before = everything(adapter)
    trial = begun()
    with FailAt() as mode:  # and no callback: where nobody watches, predictions are made ahead on CUDA
        trial(batches[8])
    for point in sorted({*torch.linspace(1, mode.count, MOST).int().tolist()}):
        with FailAt(point), pytest.raises(Injected):
            adapter(batches[8])
        assert same(everything(adapter), before)
    for batch in batches[8:]:
        torch.testing.assert_close(adapter(batch), undisturbed(batch))


def test_freed_buffers_are_made_again() -> None:
    layer = nn.Linear(2, 2)
    rollback, before = Rollback(layer), layer.weight.detach().clone()

    def fail() -> None:
        layer.weight.data.add_(1)
        raise MemoryError

    for _ in range(2):
        with pytest.raises(MemoryError), rollback.unless_complete():
            fail()
        rollback.free()
        assert torch.equal(layer.weight, before)
