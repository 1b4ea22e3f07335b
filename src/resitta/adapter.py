"""`adapt(model, "resitta")` wraps a classifier; calling the result predicts a batch and learns from it."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from resitta.components.bn_layers import BatchNorm, bn_layers
from resitta.components.entropy import entropy
from resitta.components.network import Network, Normalized, Output
from resitta.errors import BadSetting, BadState, NotExportable, UnsuitableModel
from resitta.inputs import NonFinite, check_form, check_values
from resitta.method import Method
from resitta.registry import create
from resitta.stats import Stats, bank_stats, drift

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def adapt(
    model: nn.Module,
    method: str | Method = "resitta",
    *,
    preset: str | None = None,
    seed: int = 0,
    output: Output = None,
    normalized: Normalized | None = None,
    non_finite: NonFinite = "raise",
    group: "ProcessGroup | Literal['world'] | None" = None,
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
        group: torch.distributed processes that adapt together, each on its own stream: see `resitta.dist.group`.
        settings: any setting of the method, by name.

    >>> features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    >>> model = nn.Sequential(*features, nn.Linear(8, 5))
    >>> adapter = adapt(model, "resitta", lr=5e-4)
    >>> logits = adapter(torch.rand(16, 3, 8, 8))
    >>> logits.shape, adapter.stats.samples, adapter.stats.bank.occupancy
    (torch.Size([16, 5]), 16, 16)
    """
    chosen = create(method, preset=preset, **settings)
    return Adapter(model, chosen, seed=seed, output=output, normalized=normalized, non_finite=non_finite, group=group)


class Adapter(nn.Module):
    """A classifier that learns from what it predicts. Make one with `adapt`."""

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        seed: int = 0,
        output: Output = None,
        normalized: Normalized | None = None,
        non_finite: NonFinite = "raise",
        group: "ProcessGroup | Literal['world'] | None" = None,
    ) -> None:
        super().__init__()
        if non_finite not in ("raise", "skip"):
            raise BadSetting(f"non_finite must be 'raise' or 'skip', found {non_finite!r}")
        if not isinstance(seed, int):
            raise BadSetting(f"seed must be a whole number, found {seed!r}")
        check_model(model, method)
        self.method = method
        self.seed = seed
        self.non_finite = non_finite
        self.group = group
        self.learning = True
        self.generator = torch.Generator()
        with torch.inference_mode(False):
            # In a tuple the source is no submodule: it is the caller's, not part of the adapter's own state.
            self._source = (Network(model, output=output, normalized=normalized),)
        self.reset()

    @property
    def source(self) -> Network:
        """The caller's network, as it came; its weights are shared with the caller's model."""
        return self._source[0]

    def reset(self) -> None:
        """Go back to the source, bit for bit: the learner starts anew."""
        self.samples = 0
        self.generator.manual_seed(self.seed)
        with torch.inference_mode(False):
            self.learner = self.method.start(self.source, self.generator)
            self.mean_entropy = torch.zeros(())
        if self.group is not None:
            from resitta.dist.group import join  # noqa: PLC0415  (torch.distributed is slow to import)

            join(self, self.group)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch and, unless paused, learn from it. Bad input changes nothing."""
        check_form(images, self.source)
        # A caller's inference_mode forbids training even under enable_grad, and its tensors cannot enter a graph.
        with torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images.detach()
            finite = check_values(images, self.source, self.non_finite)
            images = images.to(self.source.dtype)
            answer = self._step if self.learning else self._predict
            return answer(images) if finite is None else self._answer_around(images, finite, answer)

    def _predict(self, images: Tensor) -> Tensor:
        """Predict only; random views a method may use leave no trace."""
        before = self.generator.get_state()
        try:
            with torch.no_grad():
                return self.learner.predict(images)
        finally:
            self.generator.set_state(before)

    def _step(self, images: Tensor) -> Tensor:
        """Predict and learn."""
        logits = self.learner.step(images).detach()
        self.samples += len(images)
        before, batch = self.mean_entropy.to(logits.device), entropy(logits.float()).nanmean()
        after = before.lerp(batch, len(images) / self.samples)
        self.mean_entropy = torch.where(after.isfinite(), after, before)
        return logits

    def _answer_around(self, images: Tensor, finite: Tensor, answer: Callable[[Tensor], Tensor]) -> Tensor:
        """Answer the finite images as if they came alone; the others are repaired and only predicted."""
        repaired = images[~finite].nan_to_num(nan=0.0, posinf=1.0, neginf=0.0)
        skipped = self._predict(repaired)
        logits = skipped.new_empty((len(images), skipped.shape[1]))
        logits[~finite] = skipped
        if finite.any():
            logits[finite] = answer(images[finite])
        return logits

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """Predict without learning inside the `with` block."""
        before, self.learning = self.learning, False
        try:
            yield self
        finally:
            self.learning = before

    @property
    def stats(self) -> Stats:
        """A record of the counters, the memory, and the drift of the statistics."""
        memory = self.learner.memory()
        network = next(module for module in self.learner.modules() if isinstance(module, Network))
        return Stats(
            samples=self.samples,
            updates=self.learner.updates,
            mean_entropy=float(self.mean_entropy),
            bank=None if memory is None else bank_stats(memory),
            drift=drift(network.model, self.source.model),
        )

    def export(self) -> nn.Module:
        """Return the caller's own architecture with ordinary BatchNorm layers that hold what was learned."""
        deployed = self.learner.deployed()
        if deployed is None:
            reason = "does more than BatchNorm with fixed statistics can express"
            raise NotExportable(f"{self.method.name} {reason}; keep calling the adapter, with adapter.paused()")
        with torch.inference_mode(False):
            return deployed.export()

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return a snapshot of everything learned: unlike torch's own it does not change when the adapter goes on."""
        state: dict[str, Any] = super().state_dict(*args, prefix=prefix, **kwargs)
        state.update({key: copy.deepcopy(value) for key, value in state.items() if key.startswith(prefix)})
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Continue from a snapshot. One that does not fit leaves the adapter as it was."""
        if assign:
            raise BadState("assign=True would take the tensors away from the optimizer; load without it")
        before = self.state_dict()
        with torch.inference_mode(False):
            try:
                return super().load_state_dict(state_dict, strict)
            except Exception as error:
                super().load_state_dict(before)
                reason = " ".join(str(error).split())
                raise BadState(f"the state does not fit this {self.method.name} adapter: {reason}") from error

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counters and the random generator for `state_dict`."""
        return {
            "method": self.method.name,
            "samples": self.samples,
            "mean_entropy": float(self.mean_entropy),
            "generator": self.generator.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counters and the random generator back from a `state_dict`."""
        if state["method"] != self.method.name:
            raise BadState(f"it was saved by method {state['method']!r}")
        self.samples = int(state["samples"])
        self.mean_entropy = torch.tensor(state["mean_entropy"])
        self.generator.set_state(state["generator"].cpu())

    def extra_repr(self) -> str:
        """Say what adapts and how much of the model that is."""
        owned = sum(p.numel() for p in self.parameters())
        total = sum(p.numel() for p in self.source.model.parameters())
        return f"method={self.method!r}, {owned:,} own parameters beside the model's {total:,}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the source along, and keep shared tensors shared."""
        moved: dict[Any, tuple[Tensor, Tensor]] = {}

        def once(tensor: Tensor) -> Tensor:
            place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.data_ptr() == 0:
                return fn(tensor)
            if place not in moved:
                moved[place] = (
                    tensor.detach(),
                    fn(tensor.detach()),
                )  # the old one stays alive, so its address stays unique
            return moved[place][1]

        with torch.inference_mode(False):
            self.source._apply(once, recurse)  # type: ignore[no-untyped-call]
            super()._apply(once, recurse)  # type: ignore[no-untyped-call]
        return self


def check_model(model: nn.Module, method: Method) -> None:
    """Refuse a model that lacks what a method needs, and name a method that would work."""
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(f"the model must be a torch.nn.Module, found {type(model).__name__}")
    kind = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsuitableModel(f"{kind} is compiled to TorchScript; pass the module it was made from")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UnsuitableModel(f"{kind} has uninitialised lazy layers; call it on one batch first")
    _check_hidden_layers(model)
    layers = bn_layers(model)
    if method.needs != "nothing" and not layers:
        raise UnsuitableModel(f"{method.name} needs BatchNorm layers; {kind} has none. Use method='source' or 'lame'.")
    bare = [name for name, layer in layers if layer.running_mean is None]
    if method.needs == "running_statistics" and bare:
        lost = f"BatchNorm layer {bare[0]!r} has no running statistics (track_running_stats=False)"
        raise UnsuitableModel(f"{method.name} needs the source statistics, but {lost}. Use method='bn' or 'tent'.")


def _check_hidden_layers(model: nn.Module) -> None:
    """Refuse BatchNorm layers that a module reaches past torch's own bookkeeping, where no wrapper can stand."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, list | tuple) and any(isinstance(item, BatchNorm) for item in value):
                place = f"{type(module).__name__} keeps BatchNorm layers in the plain list {name!r}"
                raise UnsuitableModel(f"{place}; make it a torch.nn.ModuleList, so that they can be found")
