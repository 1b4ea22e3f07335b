"""The guarantees of every method, one function each; a violation raises `NonConformant`."""

import copy
import dataclasses
import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.checkpoint.tree import same, take_apart
from resitta.conformance.held import held, lost
from resitta.conformance.subject import Subject
from resitta.errors import BadImages, BadState, NonConformant, NotExportable
from resitta.method import Learner, create
from resitta.norm.affine_layers import affine_tensors
from resitta.training.network import Network

PLAIN: dict[str, Any] = {"label_prior": "none", "lookahead": "none", "feedback": False}
LONGEST = 1600
"""After how many samples a method that declares trained parameters must have moved one."""


def settings_are_frozen_keywords(subject: Subject) -> None:
    """Settings are a frozen, keyword-only dataclass; every preset can be made."""
    cls = type(subject.method)
    advice = f"decorate {cls.__name__} with @dataclass(frozen=True, kw_only=True)"
    own = cls.__dict__.get("__dataclass_params__")  # not inherited: a base class knows nothing of its fields
    expect(own is not None and own.frozen, f"the method must be a frozen dataclass; {advice}")
    expect(all(field.kw_only for field in dataclasses.fields(cls)), f"its settings must be keyword-only; {advice}")
    for preset in cls.presets:
        create(subject.method, preset=preset)


def capabilities_are_declared(subject: Subject) -> None:
    """`learns` and `learns_from_predictions` of a learner say what it does."""
    adapter, told = subject.adapter(), subject.adapter()
    cls, before = type(adapter.learner), copy.deepcopy(adapter.learner.state_dict())
    if cls.learn_from is not Learner.learn_from:
        expect(
            cls.learns_from_predictions, f"{cls.__name__} writes learn_from(); declare learns_from_predictions = True"
        )
    elif cls.learns_from_predictions:
        raise NonConformant(f"{cls.__name__} declares learns_from_predictions = True, but does not write learn_from()")
    for batch in torch.split(subject.images(200), 50):
        adapter(batch)
        adapter.sync()
        if cls.learns_from_predictions:
            with told.lock, torch.no_grad():
                logits = told.learner.predict(batch)  # without the correction of a label prior
            told.learn_from(batch, logits)
            told.sync()
    if not cls.learns:
        expect(same(adapter.learner.state_dict(), before), f"{cls.__name__} learns; do not declare learns = False")
    if cls.learns_from_predictions:
        broken = "learn_from() with the logits of predict() does not learn what a call learns"
        expect(same(adapter.learner.state_dict(), told.learner.state_dict()), broken)


def model_of_the_caller_is_unchanged(subject: Subject) -> None:
    """Neither tensors nor modes nor gradients of the caller's model change, nor the network made of it."""
    adapter = subject.adapter()
    models = {"the caller's model": subject.model, "the network that start() is given": adapter.source.model}
    before = {name: copy.deepcopy(model.state_dict()) for name, model in models.items()}
    modes = [module.training for module in subject.model.modules()]
    subject.run(adapter)
    for name, model in models.items():
        changed = [key for key, value in model.state_dict().items() if not same(value, before[name].get(key))]
        expect(not changed, f"{name} has changed: {', '.join(changed)}; change a fork of it, network.fork()")
    expect(modes == [m.training for m in subject.model.modules()], "a module of the caller's changed its mode")
    expect(all(p.grad is None for p in subject.model.parameters()), "the caller's model has gradients")


def only_declared_parameters_move(subject: Subject) -> None:
    """What `trains` does not declare stays equal to the source."""
    adapter = subject.adapter()
    subject.run(adapter)
    keep_affine = subject.method.trains == "none"
    if subject.method.trains == "all":
        return
    source = list(_frozen_tensors(adapter.source, keep_affine))
    for network in (m for m in adapter.learner.modules() if isinstance(m, Network)):
        for (name, tensor), (_, original) in zip(_frozen_tensors(network, keep_affine), source, strict=True):
            expect(torch.equal(tensor, original), f"{name} moved, but trains={subject.method.trains!r}")


def declared_parameters_move(subject: Subject) -> None:
    """A method that declares that it trains does so; otherwise the other checks would not cover its training."""
    adapter, trains = subject.adapter(), subject.method.trains
    if not adapter.source.trained_names(trains):
        return
    before = {name: p.detach().clone() for name, p in adapter.learner.named_parameters()}
    for batch in torch.split(subject.images(LONGEST), 50):
        adapter(batch)
        adapter.sync()
        if any(not same(p.detach(), before.get(name)) for name, p in adapter.learner.named_parameters()):
            advice = "add 1 per update: guards, events and autosave go by that counter"
            expect(adapter.learner.updates > 0, f"parameters moved, but self.updates did not; {advice}")
            return
    broken = f"trains={trains!r} is declared, but no parameter of {type(adapter.learner).__name__} moved"
    advice = "if it filters out all samples, pass other images or settings; if it trains nothing, declare trains 'none'"
    raise NonConformant(f"{broken} in {LONGEST:,} samples ({subject.certainty()}); {advice}")


def same_seed_gives_same_logits(subject: Subject) -> None:
    """Two adapters with one seed agree bit for bit; no global generator is drawn from."""
    before = _global_generators(subject.device)
    first = subject.run(subject.adapter(seed=3))
    for name, state in _global_generators(subject.device).items():
        advice = "draw from the generator that start() is given"
        expect(same(state, before[name]), f"the method drew from the global generator of {name}; {advice}")
    expect(torch.equal(subject.run(subject.adapter(seed=3)), first), "the same seed gave other logits")


def reset_is_bit_exact(subject: Subject) -> None:
    """After `reset` an adapter is indistinguishable from a new one."""
    adapter = subject.adapter()
    first = subject.run(adapter)
    adapter.reset()
    expect(same(adapter.state_dict(), subject.adapter().state_dict()), "reset() left some state behind")
    expect(torch.equal(subject.run(adapter), first), "the same stream after reset() gave other logits")


def all_state_is_saved(subject: Subject) -> None:
    """At any moment, what has changed in a learner is in its `state_dict`, and can be written to a file.

    What a prediction recomputes, and what a module leaves out of its copies (`__getstate__`), need not be saved.
    """
    adapter, begun = subject.adapter(seed=1), subject.adapter(seed=1)
    for batch in torch.split(subject.images(170), 34):
        adapter(batch)
        adapter.sync()
        adapters = adapter, _restored(subject, adapter), begun
        if lost(*(each.learner for each in adapters)):
            for each in adapters:  # a prediction recomputes caches
                with each.paused():
                    each(subject.images(8))
        missing = lost(*(each.learner for each in adapters))
        further = [found.owner for found in missing[1:]]
        expect(not missing, "".join(map(str, missing[:1])) + (f" (also {', '.join(further)})" if further else ""))


def state_dict_continues(subject: Subject) -> None:
    """An adapter that loads another's state continues exactly as the other does."""
    adapter = subject.adapter(seed=1)
    subject.run(adapter, n=170, size=34)
    other = _restored(subject, adapter)
    if not torch.equal(subject.run(adapter), subject.run(other)):
        raise NonConformant(f"the loaded state continued differently{_suspects(subject)}")
    if not same(adapter.state_dict(), other.state_dict()):
        raise NonConformant(f"the states differ after continuing{_suspects(subject)}")


def any_batch_size(subject: Subject) -> None:
    """One image, many, and changing numbers of them are taken; shape, type and device are right."""
    adapter = subject.adapter()
    for size in (1, 130, 1, 7, 64):
        logits = adapter(subject.images(size))
        expect(len(logits) == size and logits.ndim == 2, f"{size} images gave logits {tuple(logits.shape)}")
        expect(bool(logits.isfinite().all()), f"logits of a batch of {size} are not finite")
        expect(not logits.requires_grad, "logits carry a graph")
        expect(
            logits.device.type == subject.device.type and logits.dtype == torch.float32, "logits changed device or type"
        )


def follows_precision(subject: Subject) -> None:
    """A double-precision model gives double-precision logits."""
    adapter = Adapter(copy.deepcopy(subject.model).double(), subject.method, **subject.options)
    expect(subject.run(adapter, n=100).dtype == torch.float64, "a float64 model did not give float64 logits")


def works_in_any_grad_mode(subject: Subject) -> None:
    """`no_grad` and `inference_mode` around the call change nothing."""
    plain = subject.run(subject.adapter(), n=100)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expect(
                torch.equal(subject.run(subject.adapter(), n=100), plain), f"logits differ under torch.{mode.__name__}"
            )


def paused_changes_nothing(subject: Subject) -> None:
    """Inside `paused` the state does not change."""
    adapter = subject.adapter()
    subject.run(adapter)
    before = adapter.state_dict()
    with adapter.paused():
        subject.run(adapter, n=100)
    expect(same(before, adapter.state_dict()), "paused() did not stop learning")


def bad_input_changes_nothing(subject: Subject) -> None:
    """A batch that is refused changes nothing."""
    adapter = subject.adapter()
    subject.run(adapter)
    before, good = adapter.state_dict(), subject.images(4)
    bad = {"NaN": good * float("nan"), "huge": good + 99, "empty": good[:0], "flat": good.flatten(1), "int": good.int()}
    for kind, images in bad.items():
        try:
            adapter(images)
        except BadImages:
            expect(same(before, adapter.state_dict()), f"a refused batch ({kind}) changed the state")
        else:
            raise NonConformant(f"{kind} images were not refused")


def memory_is_bounded(subject: Subject) -> None:
    """A longer stream needs no more memory than a shorter one, and no graph outlives its step."""
    with _traced():
        adapter = dataclasses.replace(subject, method=create(subject.method, reset_every=None)).adapter()
        subject.run(adapter, n=1200, size=50)  # a memory is full, and CUDA graphs are recorded for its last size
        tensors, host = _bytes_alive(), tracemalloc.get_traced_memory()[0]
        subject.run(adapter, n=800, size=50)
        grown, host = _bytes_alive() - tensors, tracemalloc.get_traced_memory()[0] - host
    expect(grown <= 4096, f"{grown:,} further bytes of tensors are alive after 800 further samples")
    expect(host <= 2**18, f"{host:,} further bytes are held by Python after 800 further samples")
    for found in held(adapter.learner).values():
        graph = isinstance(found.value, Tensor) and found.value.grad_fn is not None
        expect(not graph, f"{found.owner} keeps a graph between steps; detach it")


def export_predicts_the_same(subject: Subject) -> None:
    """Where a method can be exported, the plain model predicts what the paused adapter does, but for a label prior."""
    adapter = dataclasses.replace(subject, method=create(subject.method, **PLAIN)).adapter()
    subject.run(adapter)
    try:
        plain = adapter.export()
    except NotExportable:
        return
    images = subject.images(20, start=90)
    with adapter.paused(), torch.no_grad():
        expect(torch.allclose(plain(images), adapter(images), atol=1e-5), "export() predicts something else")
    expect(list(plain.state_dict()) == list(subject.model.state_dict()), "export() has other keys than the model")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    settings_are_frozen_keywords,
    capabilities_are_declared,
    model_of_the_caller_is_unchanged,
    only_declared_parameters_move,
    declared_parameters_move,
    same_seed_gives_same_logits,
    reset_is_bit_exact,
    all_state_is_saved,
    state_dict_continues,
    any_batch_size,
    follows_precision,
    works_in_any_grad_mode,
    paused_changes_nothing,
    bad_input_changes_nothing,
    memory_is_bounded,
    export_predicts_the_same,
)


def expect(kept: bool, broken: str) -> None:
    """Raise `NonConformant` unless a promise was kept."""
    if not kept:
        raise NonConformant(broken)


def _frozen_tensors(network: Network, keep_affine: bool) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a network, in a fixed order, without the affine ones of norm layers unless asked for."""
    affine = set(map(id, affine_tensors(network.model)))
    return ((name, p) for name, p in network.all_parameters() if keep_affine or id(p) not in affine)


def _restored(subject: Subject, adapter: Adapter) -> Adapter:
    """Another adapter with the state of this one, which must be serialisable."""
    state = adapter.state_dict()
    try:
        take_apart(state, {})
    except BadState as error:
        raise NonConformant(f"the state cannot be written to a file: {error}") from error
    other = subject.adapter(seed=2)
    try:
        other.load_state_dict(state)
    except BadState as error:
        advice = "what start() registers must have its final names and shapes"
        raise NonConformant(f"a fresh adapter cannot load the state: {error}; {advice}") from error
    return other


def _suspects(subject: Subject) -> str:
    """Name attributes that may have been lost in a restored adapter, wherever they are."""
    adapter, begun = subject.adapter(seed=1), subject.adapter(seed=1)
    subject.run(adapter, n=170, size=34)
    missing = lost(adapter.learner, _restored(subject, adapter).learner, begun.learner, deep=True)
    return f"; perhaps through {', '.join(found.owner for found in missing)}" if missing else ""


def _global_generators(device: torch.device) -> dict[str, Any]:
    states: dict[str, Any] = {"numpy": np.random.get_state(), "Python": random.getstate()}
    states["torch"] = torch.get_rng_state()
    if device.type == "cuda":
        states[str(device)] = torch.cuda.get_rng_state(device)
    return states


@contextmanager
def _traced() -> Iterator[None]:
    """Trace what Python allocates, and leave older objects out of garbage collections: torch's alone take 0.2 s."""
    frozen_by_the_caller = gc.get_freeze_count() > 0
    gc.freeze()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        if not frozen_by_the_caller:
            gc.unfreeze()


def _bytes_alive() -> int:
    """Bytes of the tensors that garbage collection knows of."""
    gc.collect()
    return sum(t.numel() * t.element_size() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter))
