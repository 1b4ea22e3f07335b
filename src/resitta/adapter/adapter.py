"""A classifier that predicts and learns: one step, its state, and what watches it."""

import copy
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from resitta._deprecated import warn
from resitta.accel.cuda_graphs import CudaGraphs, Recorder
from resitta.adapter.options import Options
from resitta.checkpoint import io as store
from resitta.checkpoint.fingerprint import Fingerprint
from resitta.checkpoint.source_data import with_statistics
from resitta.errors import BadSetting, BadState, NotExportable, UnsuitableModel
from resitta.inputs import (
    UNRECORDABLE,
    PixelRange,
    Predict,
    answer_finite,
    check_logits,
    checked,
    for_network,
    is_batch,
    predict_early,
    refuse_recording,
)
from resitta.method import Method, needs_of_methods
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import DomainChanged, EventHandler, LabelPriorSwitched, Listener, Restarted
from resitta.monitor.guard import GuardCallback, guard_callback
from resitta.monitor.shadow import Answered, FeedbackCount
from resitta.monitor.shadow.records import NOTHING_ANSWERED
from resitta.monitor.shadow.shadow import Shadow
from resitta.monitor.stats import Stats, stats_of
from resitta.norm.requirements import check_model
from resitta.runtime.background import Background
from resitta.runtime.locks import defer_signals, new_lock, synchronized
from resitta.runtime.pausing import Pause, Pauses
from resitta.runtime.rollback import Rollback
from resitta.training.entropy import tally
from resitta.training.label_prior import TemporalPrior
from resitta.training.network import Network
from resitta.training.sharing import match_norm_precision, once_per_tensor

Learn = Callable[..., Tensor]
"""From images, and optionally their logits, to logits; and learn."""


class Adapter(nn.Module):
    """A classifier that learns from what it predicts. Make one with `adapt`."""

    def __init__(self, model: nn.Module, method: Method, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.corrects = True
        """Whether calls use the label prior and the shadow. A service applies both to its answers instead."""
        check_model(model, needs=method.needs, name=method.name, others=needs_of_methods())
        self._equip()
        given = {name: getattr(self.options, name) for name in ("output", "normalized", "precision", "classes")}
        with torch.inference_mode(False):
            # In a tuple the source is no submodule: it is the caller's, not part of the adapter's own state.
            self._source = (Network(model, **given),)
        self.source.replay.enabled = self.options.cuda_graphs
        self.fingerprint = Fingerprint(self.source.model)
        self.method = with_statistics(method, self.source, self.fingerprint)
        self._guard()
        self.reset()

    def sibling(self) -> "Adapter":
        """Return a new adapter with this one's source, method and options, but without its callbacks.

        It is in the state that this one had before its first batch. The two share the source network, digests of it and
        statistics of source data, so that a sibling costs no more than what it learns.
        """
        twin = Adapter.__new__(Adapter)
        nn.Module.__init__(twin)
        for name in ("options", "_source", "fingerprint", "method", "corrects"):
            setattr(twin, name, getattr(self, name))
        twin._equip()
        twin._guard()
        twin.reset()
        return twin

    def _guard(self) -> None:
        """Attach the guard that the options ask for."""
        self.guard: GuardCallback | None = guard_callback(self.options.guard)
        self.callbacks: list[Callback] = [] if self.guard is None else [self.guard]

    def _equip(self) -> None:
        """Create per-instance state that is not serialised."""
        self.generator = torch.Generator()
        self.pauses = Pauses()
        self.replay = CudaGraphs()
        self.background = Background(self, cuda_graphs=self.options.cuda_graphs) if self.options.background else None
        self.lock: AbstractContextManager[Any] = self.background.thread if self.background else new_lock()
        self.calls = self.background.calls if self.background else self.lock
        share, seed, fallback = self.options.shadow, self.options.seed, self.options.fallback
        self.shadow = None if share is None else Shadow(share, seed=seed, fallback=fallback)

    @property
    def source(self) -> Network:
        """The caller's network; its weights are shared with the caller's model."""
        return self._source[0]

    @synchronized
    def reset(self) -> None:
        """Return to the source, bit for bit: a new learner starts."""
        self.samples = self.batches = 0
        self.generator.manual_seed(self.options.seed)
        self.entropies = torch.zeros(2, dtype=torch.float64, device="cpu")
        self.prior = TemporalPrior(lookahead=self.method.lookahead) if self.method.label_prior == "temporal" else None
        self._prior_was_on = False
        if self.shadow is not None:
            self.shadow.clear()
        self._start()
        self.emit(Restarted(samples=0))

    def _start(self) -> None:
        """Start a new learner on the source."""
        with torch.inference_mode(False):
            self.learner = self.method.start(self.source, self.generator)
        self._changes_reported = 0
        self.rollback = Rollback(self.learner, self.generator)
        for module in self.modules():
            if isinstance(module, Recorder):  # background learning yields to predictions, a graph cannot
                module.enabled = self.options.cuda_graphs and self.background is None
        if self.background is not None:
            self.background.connect(self)
        if self.options.group is not None:
            from resitta.distributed.group import join  # noqa: PLC0415  (torch.distributed is slow to import)

            join(self, self.options.group)

    def forward(self, images: Any) -> Tensor:
        """Return the logits of a batch and, unless paused, learn from it. Bad input changes nothing.

        `images` are a float tensor N×C×H×W, or anything that `resitta.images` takes without options.
        """
        refuse_recording()
        shadow = self.shadow if self.corrects else None
        with self._entered() as (predict, learn):
            images, logits = self._answer(images, predict, learn)
            answer = logits if shadow is None else shadow.watch(self.source, images, logits)
        if shadow is not None:
            shadow.report(self.emit)
        return answer

    def _answer(self, images: Any, predict: Predict, learn: Learn) -> tuple[Tensor, Tensor]:
        """Return the images of a call as they are predicted, and their logits."""
        images, pixels = self.checked(images)
        paused = bool(self.pauses)
        early = images.is_cuda and (paused or (self.learner.learns_from_predictions and not self.callbacks))
        predicted = predict_early(images, pixels, predict) if early else None
        finite = pixels.check(self.options.non_finite)
        if finite is not None:
            seen = images if self.shadow is None else images.nan_to_num(nan=0.0, posinf=1.0, neginf=0.0)
            answer = (lambda images: self._peek(predict(images))) if paused else learn
            return seen, answer_finite(images, finite, predict, answer)
        if not paused:
            return images, learn(images, predicted)
        return images, self._peek(predict(images) if predicted is None else predicted)

    def learn_from(self, images: Any, logits: Tensor) -> None:
        """Learn from a batch that was predicted elsewhere: by an exported copy, or by another process.

        The images are converted and checked as in a call. Callbacks run, a failed step changes nothing, and while the
        adapter is paused nothing is learned. Methods that learn only from predictions of their own, such as "tent",
        refuse.

        >>> import resitta
        >>> features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        >>> adapter = resitta.adapt(nn.Sequential(*features, nn.Linear(8, 5)), "resitta")
        >>> deployed, images = adapter.export(), torch.rand(16, 3, 8, 8)
        >>> adapter.learn_from(images, deployed(images))
        >>> adapter.stats.samples
        16
        """
        with self._entered() as (_, learn):
            if not self.learner.learns_from_predictions:
                advice = "call the adapter on the images instead"
                raise BadSetting(f"{self.method.name} learns only from what it predicts itself; {advice}")
            images, pixels = self.checked(images)
            memory = self.learner.memory()
            logits = check_logits(logits, images, classes=0 if memory is None else memory.classes)
            finite = pixels.check(self.options.non_finite)
            if finite is not None:
                images, logits = images[finite], logits[finite]
            if len(images) and not self.pauses:
                learn(images, logits)

    def checked(self, images: Any) -> tuple[Tensor, PixelRange]:
        """Return images of any form as a batch of the source, and the range of its pixels, still to be checked."""
        return checked(images if is_batch(images) else for_network(images, self.source), self.source)

    @contextmanager
    def _entered(self) -> Iterator[tuple[Predict, Learn]]:
        """Hold the lock of a call, with gradients allowed; yield how to predict, and how to learn.

        A caller's inference_mode forbids training even under enable_grad.
        """
        background = self.background
        if background is not None:
            with background.calling(), torch.inference_mode(False), torch.enable_grad():
                yield background.predict, background.step
        else:
            with defer_signals(), self.lock, torch.inference_mode(False), torch.enable_grad():
                yield self._predict, self.learn

    def _predict(self, images: Tensor) -> Tensor:
        """Predict only; the random views that a method may use do not advance the generator."""
        before = self.generator.get_state()
        try:
            with torch.no_grad():
                return self.learner.predict(images)
        finally:
            self.generator.set_state(before)

    def _peek(self, logits: Tensor) -> Tensor:
        """Correct logits by the label prior, which learns nothing from them."""
        return logits if self.prior is None or not self.corrects else self.prior.peek(logits)

    def correct(self, images: Tensor, logits: Tensor) -> Tensor:
        """Correct logits by the label prior, if there is one; it learns from those that the guard does not reject."""
        if self.prior is None:
            return logits
        known = None if self.guard is None else self.guard.known(self, images, logits)
        return self.prior(logits, known)  # type: ignore[no-any-return]

    def learn(self, images: Tensor, predicted: Tensor | None = None, corrected: Tensor | None = None) -> Tensor:
        """Predict, unless that was done elsewhere, and learn, with the callbacks around it; return the logits.

        All or nothing: a step that fails leaves the adapter unchanged. The caller holds `lock`; without it, call the
        adapter or `learn_from`. `corrected`: the logits that the label prior made of `predicted`, if it has seen them.
        """
        for callback in self.callbacks:
            callback.before_step(self, images)
        learner, prior = self.learner, self.prior if corrected is None and self.corrects else None
        with (
            self.rollback.unless_complete(tensors=learner.may_update(images)),
            nullcontext() if prior is None else prior.unless_complete(),
        ):
            if predicted is None and learner.learns_from_predictions:
                predicted = learner.predict(images).detach()
            logits = learner.step(images).detach() if predicted is None else predicted
            if learner.revises and predicted is not None:
                newer = learner.learn_from(images, predicted)
                if newer is not None and corrected is None:
                    logits = newer.where(newer.isfinite(), predicted)
            totals = self.entropies.to(logits.device)
            entropies = self.replay(tally, logits, totals).clone() if logits.is_cuda else tally(logits, totals)
            answer = (logits if prior is None else self.correct(images, logits)) if corrected is None else corrected
            if predicted is not None and not learner.revises:  # the last operation that may fail: see Rollback
                learner.learn_from(images, answer if self.method.feedback else predicted)
        self.samples, self.batches, self.entropies = self.samples + len(images), self.batches + 1, entropies
        for callback in self.callbacks:
            callback.after_step(self, images, logits)
        if (changes := self.learner.domain_changes) != self._changes_reported:
            self._changes_reported = changes
            self.emit(DomainChanged(samples=self.samples, changes=changes))
        if self.prior is not None and self.prior.reported_on != self._prior_was_on:
            self._prior_was_on = not self._prior_was_on
            self.emit(LabelPriorSwitched(samples=self.samples, on=self._prior_was_on))
        if self.method.reset_every and self.batches % self.method.reset_every == 0:
            self._restart()
        return answer

    def _restart(self) -> None:
        """Start from the source again within a stream: counters and the label prior continue."""
        updates = self.learner.updates
        self._start()
        self.learner.updates = updates

    @property
    def answered(self) -> Answered:
        """The ids of the images of this thread's last call, and which are compared with the source.

        Without `shadow=`, images have no ids.
        """
        return NOTHING_ANSWERED if self.shadow is None else self.shadow.answered

    def feedback(self, ids: Any, labels: Any) -> FeedbackCount:
        """Take the labels of images that were predicted before; `stats.shadow.feedback` compares by them.

        Images are numbered in the order of their prediction, from 0 on, also while the adapter is paused; a reset
        begins anew. Only labels of images that the source has predicted, too, can be used (`answered.compared`); others
        are counted, as are ids that were never given or are forgotten, beyond the last 8,192 compared images.

        Args:
            ids: numbers of images, such as `answered.ids`, as a list, an array or a tensor.
            labels: the class of each, as a number.

        >>> import resitta
        >>> model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
        >>> adapter = resitta.adapt(model, "tent", shadow=1.0)
        >>> _ = adapter(torch.rand(8, 3, 2, 2))
        >>> adapter.feedback(adapter.answered.ids, torch.arange(8) % 5)
        FeedbackCount(used=8, not_compared=0, unknown=0, falling_back=False)
        >>> adapter.stats.shadow.feedback.running.labelled
        8
        """
        shadow = self._shadow()
        with defer_signals():
            count = shadow.feedback(self.source, ids, labels)
        shadow.report(self.emit)
        return count

    def _shadow(self) -> Shadow:
        if self.shadow is None:
            raise BadSetting("nothing is compared with the source; call resitta.adapt with shadow=, such as 0.05")
        return self.shadow

    def sync(self) -> None:
        """Wait until everything predicted so far has been learned from; only `background=True` has to."""
        if self.background is not None:
            self.background.sync()

    def add_callback(self, callback: Callback) -> None:
        """Call a callback's hooks around every learning step from now on, after those already attached."""
        if not isinstance(callback, Callback):
            raise BadSetting(f"a callback derives from resitta.Callback, found a {type(callback).__name__}")
        self.callbacks.append(callback)

    def watch(self, callback: Callback) -> None:
        """Do what `add_callback` does, under its old name."""
        warn("adapter.watch", "adapter.add_callback")
        self.add_callback(callback)

    def listen(self, callback: EventHandler) -> None:
        """Call a function with each event: `Updated`, `GuardFired`, … (see `resitta.events`)."""
        self.add_callback(Listener(callback))

    def emit(self, event: object) -> None:
        """Report an event to every callback."""
        for callback in self.callbacks:
            callback.on_event(self, event)

    def paused(self) -> Pause[Self]:
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
        network = self.learner.exportable_network()
        if network is None:
            reason = "does more than BatchNorm with fixed statistics can express"
            raise NotExportable(f"{self.method.name} {reason}; keep calling the adapter, with adapter.paused()")
        with torch.inference_mode(False):
            return match_norm_precision(network.export(), self.source.model)

    @synchronized
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything learned to one file, atomically; `resitta.load(model, path)` continues from it."""
        store.save(self, path)

    @synchronized
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` wrote with this model and method; any other leaves the adapter as it is.

        The adapter keeps its own seed, precision, guard, shadow and `non_finite`; the log warns of those that differ.
        `resitta.load(model, path)` makes an adapter with all options of the file.
        """
        store.restore(self, path)

    @synchronized
    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return a snapshot of everything learned: unlike torch's own it is a copy."""
        if torch.onnx.is_in_onnx_export():  # which asks for the state before anything else, and cannot take ours
            raise NotExportable(UNRECORDABLE)
        state: dict[str, Any] = super().state_dict(*args, prefix=prefix, **kwargs)
        state.update({key: copy.deepcopy(value) for key, value in state.items() if key.startswith(prefix)})
        return state

    @synchronized
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Continue from a snapshot. One that does not fit leaves the adapter unchanged."""
        if assign:
            raise BadState("assign=True would take the tensors away from the optimizer; load without it")
        with torch.inference_mode(False):
            fitted = store.load_state(self, super().load_state_dict, state_dict, strict)
        self._loaded()
        return fitted

    def _loaded(self) -> None:
        """Publish the new state to predictions and callbacks."""
        self._prior_was_on = self.prior is not None and self.prior.on
        self._changes_reported = self.learner.domain_changes
        if self.background is not None:
            self.background.publish(self)
        self.emit(Restarted(samples=self.samples))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters, the random generator, and the state of guard and shadow, for `state_dict`."""
        return store.extra_state(self)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counters, the random generator, and the state of guard and shadow back from a `state_dict`."""
        store.set_extra_state(self, state)

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: the source, and a snapshot, so that no two adapters write to one tensor."""
        snapshot = io.BytesIO()
        torch.save(self.state_dict(), snapshot)
        left_out = ("_modules", "generator", "pauses", "rollback", "background", "lock", "calls", "shadow")
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
