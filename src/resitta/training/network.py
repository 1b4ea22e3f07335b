"""The caller's classifier as methods see it: images in, logits out, frozen weights shared with the caller."""

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from resitta.accel.bf16_weights import Bf16Weights
from resitta.accel.cuda_graphs import CudaGraphs
from resitta.errors import BadImages, BadOutput, BadSetting, GroupFailure, ResittaError
from resitta.inputs import layout_hint
from resitta.norm.affine_layers import affine_tensors
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, replace_layers
from resitta.norm.contiguous_group_norm import ContiguousGroupNorm
from resitta.training.classes import count_classes
from resitta.training.sharing import all_parameters, borrowed, raise_norm_precision, share, unshare
from resitta.training.strong_view import View

Trained = Literal["none", "affine", "all"]
Precision = Literal["exact", "bf16"]
Output = str | int | Callable[[Any], Tensor] | None
Normalized = tuple[Sequence[float], Sequence[float]]
REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError, IndexError)
"""What a model may raise when images do not suit it."""
CASTS_ON = {"cuda"}
"""Where frozen weights are cast once; on a CPU, casting in every pass is cheaper."""
ROWS = 4
"""How many rows must look like probabilities before they count as such: logits may do so once by chance."""
MISFITS = re.compile(
    r"expected input\[.*\] to have \d+ channels|shapes cannot be multiplied|size mismatch|must match the size of tensor"
    r"|must match except in dimension|is invalid for input of size|can't be greater than actual input size"
    r"|Output size is too small|too small for|smaller than kernel size|Expected \dD|expected \dD|[Ee]xpected 4-?D"
    r"|elements not \d+|(size|height|width|image).* doesn't match model",
)
"""Messages of torch and timm about a shape that does not fit a layer."""


class Network(nn.Module):
    """One network on the caller's architecture, always in eval mode: no dropout, statistics move only on purpose.

    `fork` makes further networks that share every parameter they do not train.

    >>> network = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)))
    >>> student = network.fork("affine")
    >>> [name for name, _ in student.named_parameters()]
    ['model.2.weight', 'model.2.bias']
    >>> student.model[1].weight.data_ptr() == network.model[1].weight.data_ptr()
    True
    """

    mean: Tensor | None
    std: Tensor | None
    plain_range: tuple[float, float] | None

    if TYPE_CHECKING:

        def __call__(self, images: Tensor) -> Tensor:
            """Return the logits, N×C."""

    def __init__(
        self,
        model: nn.Module,
        *,
        output: Output = None,
        normalized: Normalized | None = None,
        precision: Precision = "exact",
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.model = share(model, own=())
        self._classes = classes
        self.output = output
        self.precision = precision
        self.channels_last = False
        self._trains_group_norm = False
        self.replay = CudaGraphs()
        self.casts = Bf16Weights()
        self.answers = Answers()
        self.trainable = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        mean, std, self.plain_range = None, None, None
        if normalized is not None:
            mean, std = _per_channel(normalized)
            self.plain_range = float(mean.min()), float((mean + std).max())
            mean, std = mean.to(self.device), std.to(self.device)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode, whatever the caller's `adapter.train()` asks for."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert; the caller's normalisation is moved only, since rounding would change it."""
        mean, std = self.mean, self.std
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if mean is not None and std is not None:
            self.mean, self.std = mean.to(fn(mean).device), std.to(fn(std).device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self._example().device

    @property
    def dtype(self) -> torch.dtype:
        """The precision it computes in."""
        return self._example().dtype

    @property
    def classes(self) -> int:
        """The number of classes: as given, or found by a forward pass when it is first asked for.

        >>> Network(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 7))).classes
        7
        """
        if self._classes is None:
            self._classes = count_classes(self)
        return self._classes

    def _example(self) -> Tensor:
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return next(filter(Tensor.is_floating_point, tensors), torch.empty(0, device="cpu"))

    def fork(self, train: Trained | list[str] = "none", *, channels_last: bool = False) -> "Network":
        """Copy the architecture, own the parameters to be trained, share the rest. Fork only what was not wrapped.

        `train`: a way of training, or the names of parameters of `model`.
        `channels_last`: give the model its images in the layout that convolutions are fastest in.
        """
        own = self.trained_names(train) if isinstance(train, str) else train
        twin = self.around(share(self.model, own=own, borrow_as_buffers=True))
        twin.channels_last = channels_last
        twin._trains_group_norm = bool(own) and any(isinstance(module, nn.GroupNorm) for module in twin.model.modules())
        raise_norm_precision(twin.model)
        return twin.eval()

    def around(self, model: nn.Module) -> "Network":
        """Call another model of this architecture as this network calls its own."""
        twin = copy.copy(self)
        twin._modules = {"replay": CudaGraphs(), "casts": self.casts, "model": model}
        twin._buffers = dict(self._buffers)
        return twin

    def with_bn(self, wrap: Callable[[BatchNorm], AdaptiveBN]) -> Self:
        """Wrap every BatchNorm layer of a fork."""
        self.model = replace_layers(self.model, BatchNorm, lambda layer: wrap(cast(BatchNorm, layer)))
        return self

    def all_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return the parameters, owned and shared, with names that agree between forks wrapped alike."""
        return all_parameters(self.model)

    def trained_names(self, train: Trained) -> list[str]:
        """Name the parameters that a way of training moves."""
        if train == "all":
            return [name for name, p in self.model.named_parameters() if p.is_floating_point()]
        if train == "none":
            return []
        affine = set(map(id, affine_tensors(self.model)))
        return [name for name, p in self.model.named_parameters() if id(p) in affine]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, N×C."""
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        place, fast = images.device.type, self.precision == "bf16"
        autocast = torch.autocast(
            place, torch.bfloat16, enabled=fast, cache_enabled=False
        )  # overrides the caller's autocast
        try:
            safe = ContiguousGroupNorm() if self._trains_group_norm and place == "cpu" else nullcontext()
            with autocast, safe, self._bf16_weights() if fast and place in CASTS_ON else nullcontext():
                answer = self.model(images.clone(memory_format=layout))  # a model may normalise in place
        except REFUSALS as error:
            if isinstance(error, ResittaError) or not self.answers.blames_images(error, images.shape):
                raise
            reason = str(error).partition("\n")[0]
            found = f"the model refused images of shape {tuple(images.shape)}: {reason}"
            raise BadImages(f"{found}{layout_hint(images)}") from error
        logits = _logits(answer, self.output, len(images))
        if self._classes is not None and logits.shape[1] != self._classes:
            width = logits.shape[1]
            expected = f"where {self._classes} classes were expected"
            advice = f"if {width} is right, pass adapt(..., classes={width})"
            raise BadOutput(f"the model returned {width} logits per image {expected}; {advice}")
        self.answers.take(images, logits, channels_last=self.channels_last)
        return logits.to(images.dtype) if fast else logits

    def _bf16_weights(self) -> AbstractContextManager[None]:
        frozen = (getattr(module, name) for module in self.model.modules() for name in borrowed(module))
        return self.casts.of(frozen, channels_last=self.channels_last)

    @torch.no_grad()
    def predict(self, images: Tensor, forward: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the logits without a graph; on a CUDA device the forward pass runs as a CUDA graph.

        `forward`: another function that calls this network on images, to return more than the logits.
        """
        function = forward or self.forward
        try:
            return (self.replay(function, images) if images.is_cuda else function(images)).clone()
        except REFUSALS as error:
            known = self.answers.knows(images.shape, channels_last=self.channels_last)
            if not self.channels_last or known or isinstance(error, torch.OutOfMemoryError | BadOutput | GroupFailure):
                raise
            self.channels_last = False  # some models insist on the usual layout, by Tensor.view for example
            try:
                return self.predict(images, forward)
            except Exception:
                self.channels_last = True  # that was not the reason
                raise

    def pixels(self, images: Tensor) -> Tensor:
        """Undo the caller's normalisation: images in [0, 1]."""
        return images if self.mean is None or self.std is None else images * self.std + self.mean

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Normalise images in [0, 1] as the caller does."""
        return pixels if self.mean is None or self.std is None else ((pixels - self.mean) / self.std).to(pixels.dtype)

    def augment(self, images: Tensor, view: View) -> Tensor:
        """Apply a view in [0, 1] space, whatever normalisation the caller uses."""
        pixels = self.pixels(images)
        seen = view(images.clone() if pixels is images else pixels)  # a view may write in place, into its own copy
        if not isinstance(seen, Tensor) or seen.shape != images.shape:
            found = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
            raise BadImages(f"the view turned {tuple(images.shape)} into {found}; it must return images of that shape")
        return self.from_pixels(seen).to(images.dtype)

    def export(self) -> nn.Module:
        """Return an ordinary copy of the caller's model with this network's statistics and parameters."""
        plain = copy.deepcopy(self.model)
        plain = replace_layers(plain, AdaptiveBN, lambda wrapped: cast(AdaptiveBN, wrapped).unwrap())
        plain = unshare(plain)
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(name in self.trainable)
        return plain.eval()


class Answers:
    """What the model has accepted and returned so far; shared by all forks of a network."""

    def __init__(self) -> None:
        self._last: tuple[torch.Size, bool] | None = None
        self._unsure = ROWS

    def __getstate__(self) -> dict[str, object]:
        """A copy starts without knowledge."""
        return vars(Answers())

    def take(self, images: Tensor, logits: Tensor, *, channels_last: bool) -> None:
        """Note that images in one layout were answered; refuse probabilities in the place of logits."""
        self._last = images.shape[1:], channels_last
        if self._unsure:
            self._check(logits.detach())

    def knows(self, shape: torch.Size, *, channels_last: bool) -> bool:
        """Whether the last images were of this shape and layout, and were answered: then neither is to blame."""
        return self._last == (shape[1:], channels_last)

    def blames_images(self, error: Exception, shape: torch.Size) -> bool:
        """Whether what the model raised is certainly due to the shape of the images."""
        unheard = self._last is None or self._last[0] != shape[1:]
        return unheard and MISFITS.search(str(error)) is not None

    def _check(self, logits: Tensor) -> None:
        """Look at the first rows, and no further once one of them is certainly not a probability distribution."""
        if logits.is_meta or (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        rows = logits.double()
        rounding = 1e-3 if torch.finfo(logits.dtype).eps < 1e-6 else 2e-2
        if not bool((rows >= 0).all() & ((rows.sum(dim=1) - 1).abs() < rounding).all()):
            self._unsure = 0 if bool(rows.isfinite().all()) else self._unsure
            return
        self._unsure -= len(torch.unique(rows, dim=0))
        if self._unsure <= 0:
            self._unsure = ROWS  # the next call is refused, too
            reason = "the model returns probabilities (every row is non-negative and sums to 1), not logits"
            raise BadOutput(f"{reason}; remove its final softmax, or take their logarithm with output=torch.log")


def _per_channel(normalized: Normalized) -> tuple[Tensor, Tensor]:
    """Check (mean, std) and shape them to broadcast over images."""
    try:
        mean, std = (torch.as_tensor(v, dtype=torch.float32, device="cpu").view(1, -1, 1, 1) for v in normalized)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadSetting(f"normalized must be (mean, std) with a number per channel, found {normalized!r}") from error
    if mean.shape != std.shape or not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
        raise BadSetting(f"normalized needs as many finite means as positive stds, found {normalized!r}")
    return mean, std


def _logits(answer: Any, output: Output, n: int) -> Tensor:
    """Select the logits from what the model returned and insist on N×C."""
    picked = pick(answer, output)
    if not isinstance(picked, Tensor):
        raise BadOutput(f"the model returned {_describe(picked)}, not logits; select them with output=")
    if picked.ndim != 2 or picked.shape[0] != n or picked.shape[1] < 2 or not picked.is_floating_point():
        wanted = f"float logits of shape ({n}, classes), with at least two classes"
        dense = picked.ndim == 4 and picked.shape[0] == n
        hint = "it labels pixels, and only classifiers of whole images can adapt" if dense else "see output="
        raise BadOutput(f"the model must return {wanted}, found {tuple(picked.shape)} of {picked.dtype}; {hint}")
    return picked


def pick(answer: Any, output: Output) -> Any:
    """Select from what a model returned what `output` names: a key, an attribute, an index or a function.

    >>> pick({"logits": 3, "features": 4}, "logits")
    3
    """
    if output is None:
        return answer
    try:
        if callable(output):
            return output(answer)
        by_key = isinstance(answer, Mapping) or isinstance(output, int)
        return answer[output] if by_key else getattr(answer, str(output))
    except (LookupError, TypeError, AttributeError) as error:
        raise BadOutput(f"output={output!r} selects nothing from {_describe(answer)}") from error


def _describe(answer: Any) -> str:
    keys = f" with keys {sorted(map(str, answer))}" if isinstance(answer, Mapping) else ""
    return f"a {type(answer).__name__}{keys}"
