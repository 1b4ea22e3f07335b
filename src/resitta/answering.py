"""How a batch is answered: what may not enter is refused, what cannot be learned from is only predicted."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from resitta.errors import NotExportable
from resitta.inputs import Values, check_form

if TYPE_CHECKING:
    from resitta.adapter import Adapter

UNRECORDABLE = (
    "an adapter learns while it predicts, which no trace, script or exported program can hold; "
    "use adapter.export(), an ordinary model with what was learned"
)
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.onnx.is_in_onnx_export)  # since torch 2.7
Predict = Callable[[Tensor], Tensor]
"""From images to logits."""


class Learn(Protocol):
    """From images to logits, and learn; the prediction may have been made already."""

    def __call__(self, images: Tensor, predicted: Tensor | None = None) -> Tensor:
        """Return the logits."""


def refuse_recording() -> None:
    """Refuse to be traced by torch.jit or exported by torch.export, on which torch.onnx builds."""
    if torch.jit.is_tracing() or exporting():  # type: ignore[attr-defined, no-untyped-call]
        raise NotExportable(UNRECORDABLE)


def answer(adapter: "Adapter", images: Tensor, predict: Predict, learn: Learn) -> Tensor:
    """Return the logits of a batch and, unless the adapter is paused, learn from it. Bad input changes nothing."""
    check_form(images, adapter.source)
    # A caller's inference_mode forbids training even under enable_grad, and its tensors cannot enter a graph.
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone() if images.is_inference() else images.detach()
        values = Values(images, adapter.source)
        images, paused = images.to(adapter.source.dtype), bool(adapter.pauses)
        first = paused or (adapter.learner.predicts_first and not adapter.callbacks)
        predicted = _predict_meanwhile(images, values, predict) if first and images.is_cuda else None
        finite = values.check(adapter.options.non_finite)
        if finite is not None:
            return answer_around(images, finite, predict, predict if paused else learn)
        if not paused:
            return learn(images, predicted)
        return predict(images) if predicted is None else predicted


def _predict_meanwhile(images: Tensor, values: Values, predict: Predict) -> Tensor:
    """Predict before it is known that the images may enter, so that a CUDA device has work while the host asks it."""
    try:
        return predict(images)
    except Exception:
        values.check("skip")  # values that may not enter are a better reason
        raise


def answer_around(images: Tensor, finite: Tensor, predict: Predict, answer: Predict) -> Tensor:
    """Answer the finite images as if they came alone; the others are repaired and only predicted.

    >>> images = torch.tensor([0.25, torch.nan])
    >>> answer_around(images, images.isfinite(), lambda x: x[:, None], lambda x: -x[:, None]).flatten()
    tensor([-0.2500,  0.0000])
    """
    repaired = images[~finite].nan_to_num(nan=0.0, posinf=1.0, neginf=0.0)
    skipped = predict(repaired)
    logits = skipped.new_empty((len(images), skipped.shape[1]))
    logits[~finite] = skipped
    places = finite.nonzero().flatten()
    if len(places):
        logits.index_copy_(0, places, answer(images[finite]))  # needs no memory: after learning nothing must fail
    return logits
