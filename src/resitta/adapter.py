"""`adapt(model, "resitta")` wraps a classifier; calling the result predicts a batch and learns from it."""

import copy
import io
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import Replay
from resitta.answering import UNRECORDABLE, answer, refuse_recording
from resitta.checkpoint import io as store
from resitta.checkpoint.fingerprint import Fingerprint
from resitta.checkpoint.values import check_values
from resitta.errors import BadSetting, BadState, NotExportable, UnsuitableModel
from resitta.inputs import NonFinite
from resitta.method import Learner, Method
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import EventHandler, Listener, Restarted
from resitta.monitor.guard import Guard, GuardCallback, guard_callback, load_guard
from resitta.monitor.stats import Stats, stats_of
from resitta.options import Options, Ranks
from resitta.registry import create
from resitta.runtime.background import Background
from resitta.runtime.locks import defer_signals, new_lock, synchronized
from resitta.runtime.pausing import Pause, Pauses
from resitta.runtime.rollback import Rollback
from resitta.suitable import check_model
from resitta.training.entropy import tally
from resitta.training.network import Network, Normalized, Output, Precision
from resitta.training.sharing import match_bn_precision, once_per_tensor


def adapt(
    model: nn.Module,
    method: str | Method = "resitta",
    *,
    preset: str | None = None,
    seed: int = 0,
    output: Output = None,
    normalized: Normalized | None = None,
    non_finite: NonFinite = "raise",
    guard: Guard | bool = False,
    precision: Precision = "exact",
    cuda_graphs: bool = True,
    background: bool = False,
    group: Ranks = None,
    classes: int | None = None,
    **settings: Any,
) -> "Adapter":
    """Wrap a classifier so that it adapts to the stream of images it is called on.

    The model is never modified. Its frozen weights are shared, not copied: if you go on training the same model
    object, give the adapter a `copy.deepcopy` of it.

    Args:
        model: any classifier with BatchNorm layers; float images N×C×H×W in, logits N×classes out.
        method: a name of `list_methods()`, or a method with its settings such as `methods.ResiTTA(eta=0.05)`.
        preset: named settings of the method: "cifar10", "cifar100", "imagenet".
        seed: fixes all randomness.
        output: where the logits are when the model returns more than them: a key, an attribute, an index or a function.
        normalized: (mean, std) if your images are normalised already; otherwise they must lie in [0, 1].
        non_finite: what to do with images that hold NaN or Inf: "raise", or "skip" (predicted, never learned from).
        guard: True, or a `Guard` with settings of its own, takes back what would break the adapter.
        precision: "exact" computes in the model's own precision, "bf16" as far as it is safe in bfloat16 (autocast),
            on a CUDA device with copies of the frozen weights in half their size.
        cuda_graphs: on a CUDA device, record repeated work once and launch it as a whole; False if your model's
            forward pass depends on more than its inputs and weights.
        background: learn in a thread (and CUDA stream) of its own, so that a call takes about as long as the model
            alone; predictions then follow what was learned a little later. `sync()` waits. For "resitta" and "rotta".
        group: torch.distributed processes that adapt together, each on its own stream: see `resitta.distributed.group`.
        classes: how many the model tells apart; only for a method that has to know it and a model that does not tell
            when asked with an image of a usual size.
        settings: any setting of the method, by name.

    >>> features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    >>> model = nn.Sequential(*features, nn.Linear(8, 5))
    >>> adapter = adapt(model, "resitta", lr=5e-4)
    >>> logits = adapter(torch.rand(16, 3, 8, 8))
    >>> logits.shape, adapter.stats.samples, adapter.stats.bank.occupancy
    (torch.Size([16, 5]), 16, 16)
    """
    chosen = create(method, preset=preset, **settings)
    return Adapter(
        model,
        chosen,
        seed=seed,
        output=output,
        normalized=normalized,
        non_finite=non_finite,
        guard=guard,
        precision=precision,
        cuda_graphs=cuda_graphs,
        background=background,
        group=group,
        classes=classes,
    )


class Adapter(nn.Module):
    """A classifier that learns from what it predicts. Make one with `adapt`."""

    def __init__(self, model: nn.Module, method: Method, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        check_model(model, method)
        self.method = method
        self.guard: GuardCallback | None = guard_callback(self.options.guard)
        self.callbacks: list[Callback] = [] if self.guard is None else [self.guard]
        self._equip()
        given = {name: getattr(self.options, name) for name in ("output", "normalized", "precision", "classes")}
        with torch.inference_mode(False):
            # In a tuple the source is no submodule: it is the caller's, not part of the adapter's own state.
            self._source = (Network(model, **given),)
        self.fingerprint = Fingerprint(self.source.model)
        self.reset()

    def _equip(self) -> None:
        """Make what no two adapters have in common and no file holds."""
        self.generator = torch.Generator()
        self.pauses = Pauses()
        self.replay = Replay()
        self.background = Background(self, cuda_graphs=self.options.cuda_graphs) if self.options.background else None
        self.lock: AbstractContextManager[Any] = self.background.thread if self.background else new_lock()
        self.calls = self.background.calls if self.background else self.lock

    @property
    def source(self) -> Network:
        """The caller's network, as it came; its weights are shared with the caller's model."""
        return self._source[0]

    @synchronized
    def reset(self) -> None:
        """Go back to the source, bit for bit: the learner starts anew."""
        self.samples = 0
        self.generator.manual_seed(self.options.seed)
        with torch.inference_mode(False):
            self.learner = self.method.start(self.source, self.generator)
            self.rollback = Rollback(self.learner, self.generator)
            self.entropies = torch.zeros(2, dtype=torch.float64, device="cpu")
        for module in self.modules():
            if isinstance(module, Replay):  # a recording runs as a whole: in the background it would not make way
                module.enabled = self.options.cuda_graphs and self.background is None
        if self.background is not None:
            self.background.connect(self)
        if self.options.group is not None:
            from resitta.distributed.group import join  # noqa: PLC0415  (torch.distributed is slow to import)

            join(self, self.options.group)
        self.emit(Restarted(samples=0))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch and, unless paused, learn from it. Bad input changes nothing."""
        refuse_recording()
        if self.background is not None:
            with self.background.calling():
                return answer(self, images, self.background.predict, self.background.step)
        with defer_signals(), self.lock:
            return answer(self, images, self._predict, self.learn)

    def _predict(self, images: Tensor) -> Tensor:
        """Predict only; random views a method may use leave no trace."""
        before = self.generator.get_state()
        try:
            with torch.no_grad():
                return self.learner.predict(images)
        finally:
            self.generator.set_state(before)

    def learn(self, images: Tensor, predicted: Tensor | None = None) -> Tensor:
        """Predict, unless that was done elsewhere, and learn, with the callbacks around it. For who has the turn.

        A step that fails leaves the adapter as it was before.
        """
        for callback in self.callbacks:
            callback.before_step(self, images)
        learner = self.learner
        undo = self.rollback.keep(tensors=learner.may_update(images))
        try:
            logits = self._learn(learner, images, predicted)
        except BaseException:
            undo()
            raise
        for callback in self.callbacks:
            callback.after_step(self, images, logits)
        return logits

    def _learn(self, learner: Learner, images: Tensor, predicted: Tensor | None) -> Tensor:
        if predicted is None and learner.predicts_first:
            predicted = learner.predict(images).detach()
        logits = learner.step(images).detach() if predicted is None else predicted
        entropies = self.replay(tally, logits, self.entropies.to(logits.device)).clone()
        if predicted is not None:
            learner.learn_from(images, predicted)  # the last that may fail: see Rollback
        self.samples, self.entropies = self.samples + len(images), entropies
        return logits

    def sync(self) -> None:
        """Wait until everything predicted so far has been learned from; only `background=True` has to."""
        if self.background is not None:
            self.background.sync()

    def add_callback(self, callback: Callback) -> None:
        """Call a callback's hooks around every learning step from now on, after those already attached."""
        if not isinstance(callback, Callback):
            raise BadSetting(f"a callback derives from resitta.Callback, found a {type(callback).__name__}")
        self.callbacks.append(callback)

    def listen(self, callback: EventHandler) -> None:
        """Call a function with each event: `Updated`, `GuardFired`, … (see `resitta.events`)."""
        self.add_callback(Listener(callback))

    def emit(self, event: object) -> None:
        """Tell every callback of an event."""
        for callback in self.callbacks:
            callback.on_event(self, event)

    def paused(self) -> Pause:
        """Predict without learning inside the `with` block; calls from other threads do not learn meanwhile either."""
        return Pause(self)

    @property
    def mean_entropy(self) -> float:
        """The mean entropy of all predictions learned from so far."""
        total, count = self.entropies.tolist()
        return float(total) / max(1.0, float(count))

    @property
    @synchronized
    def stats(self) -> Stats:
        """A record of the counters, the memory, and the drift of the statistics."""
        return stats_of(self)

    @synchronized
    def export(self) -> nn.Module:
        """Return the caller's own architecture with ordinary BatchNorm layers that hold what was learned."""
        deployed = self.learner.exportable_network()
        if deployed is None:
            reason = "does more than BatchNorm with fixed statistics can express"
            raise NotExportable(f"{self.method.name} {reason}; keep calling the adapter, with adapter.paused()")
        with torch.inference_mode(False):
            return match_bn_precision(deployed.export(), self.source.model)

    @synchronized
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything learned to one file, at once or not at all; `resitta.load(model, path)` goes on from it."""
        store.save(self, path)

    @synchronized
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` wrote with this model and method; any other leaves the adapter as it is.

        The adapter keeps its own seed, precision, guard and `non_finite`; the log warns of those that differ.
        `resitta.load(model, path)` makes an adapter with all options of the file.
        """
        store.restore(self, path)

    @synchronized
    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return a snapshot of everything learned: unlike torch's own it does not change when the adapter goes on."""
        if torch.onnx.is_in_onnx_export():  # which asks for the state before anything else, and cannot take ours
            raise NotExportable(UNRECORDABLE)
        state: dict[str, Any] = super().state_dict(*args, prefix=prefix, **kwargs)
        state.update({key: copy.deepcopy(value) for key, value in state.items() if key.startswith(prefix)})
        return state

    @synchronized
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Continue from a snapshot. One that does not fit leaves the adapter as it was."""
        if assign:
            raise BadState("assign=True would take the tensors away from the optimizer; load without it")
        before = self.state_dict()
        with torch.inference_mode(False):
            try:
                fitted = super().load_state_dict(state_dict, strict)
                if "_extra_state" not in state_dict:  # strict=False: whatever was loaded, the guard does not know it
                    load_guard(self, None)
                check_values(self)
            except Exception as error:
                super().load_state_dict(before)
                reason = " ".join(str(error).split())
                raise BadState(f"the state does not fit this {self.method.name} adapter: {reason}") from error
        self._loaded()
        return fitted

    def _loaded(self) -> None:
        """Let calls and callbacks know of another state."""
        if self.background is not None:
            self.background.publish(self)
        self.emit(Restarted(samples=self.samples))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters, the random generator and the guard's state for `state_dict`."""
        state = {
            "method": self.method.name,
            "model": self.fingerprint.structure,
            "samples": self.samples,
            "entropies": self.entropies,
            "generator": self.generator.get_state(),
        }
        return state if self.guard is None else {**state, "guard": self.guard.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counters, the random generator and the guard's state back from a `state_dict`."""
        if state["method"] != self.method.name:
            raise BadState(f"it was saved by method {state['method']!r}")
        if state["model"] != self.fingerprint.structure:
            raise BadState("it was saved with a model whose tensors have other names or shapes, or other classes")
        self.samples = int(state["samples"])
        self.entropies = state["entropies"].clone()
        self.generator.set_state(state["generator"].cpu())
        load_guard(self, state.get("guard"))

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: the source, and a snapshot, so that no two adapters write to one tensor."""
        snapshot = io.BytesIO()
        torch.save(self.state_dict(), snapshot)
        left_out = ("_modules", "generator", "pauses", "rollback", "background", "lock", "calls")
        rest = {name: value for name, value in vars(self).items() if name not in left_out}
        callbacks = [callback for callback in self.callbacks if callback.copied]
        return {**rest, "callbacks": callbacks, "snapshot": snapshot.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot = io.BytesIO(state.pop("snapshot"))
        super().__setstate__({**state, "_modules": {}})  # type: ignore[no-untyped-call]
        self._equip()
        self.reset()
        with torch.inference_mode(False):
            super().load_state_dict(torch.load(snapshot, weights_only=True))
        self._loaded()

    def __prepare_scriptable__(self) -> None:
        """For torch.jit.script, which could not say what is wrong."""
        raise NotExportable(UNRECORDABLE)

    def extra_repr(self) -> str:
        """Say what adapts and how much of the model that is."""
        owned = sum(p.numel() for p in self.parameters())
        total = sum(p.numel() for p in self.source.model.parameters())
        return f"method={self.method!r}, {owned:,} own parameters beside the model's {total:,}"

    @synchronized
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the source along, and keep shared tensors shared."""
        if self.method.trains == "all" and fn(torch.empty(0, dtype=torch.float32)).dtype == torch.float16:
            raise UnsuitableModel("float16 parameters are too coarse to train; convert the adapter to bfloat16")
        once = once_per_tensor(fn)
        with torch.inference_mode(False), self.calls:
            self.source._apply(once, recurse)
            super()._apply(once, recurse)  # type: ignore[no-untyped-call]
            if self.background is not None:
                self.background.connect(self)
                self.background.queue.convert(fn)
        self.fingerprint = Fingerprint(self.source.model)
        return self
