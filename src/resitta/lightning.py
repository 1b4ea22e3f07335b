"""A callback of Lightning: `trainer.predict` with a classifier that adapts. For `lightning` and `pytorch_lightning`."""

import sys
from typing import Any

from torch import nn

from resitta.adapter import Adapter, adapt
from resitta.errors import UnsuitableModel, require
from resitta.method import Method

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Where Lightning may be. Each has a class `Callback` of its own, and its trainer takes no other."""


def adapt_predictions(submodule: str = "model", method: str | Method = "resitta", **options: Any) -> Any:
    """Return a callback that adapts a classifier while `trainer.predict` runs.

    `submodule` is the classifier's name in the LightningModule: images in, logits out. The other arguments are those of
    `resitta.adapt`, but here the default method is the paper's. Your `predict_step` stays as it is. Each process of a
    trainer adapts to the images it predicts.
    """
    imported = [sys.modules[name].Callback for name in PACKAGES if name in sys.modules]
    bases = imported or [require(PACKAGES[0], "lightning").Callback]
    kind = type(AdaptedPrediction.__name__, (AdaptedPrediction, *bases), {})
    return kind(submodule, {"method": method, **options})


class AdaptedPrediction:
    """What `adapt_predictions` returns: it puts an adapter in the place of a submodule while `trainer.predict` runs.

    `adapter` remains afterwards, with its statistics, and a further `predict` continues with it. Training drops it,
    since it changes the weights that the adapter shares.

    >>> from resitta.conformance import tiny_network
    >>> module = nn.ModuleDict({"model": tiny_network()})
    >>> callback = AdaptedPrediction("model", {"method": "tent"})
    >>> callback.on_predict_start(None, module)
    >>> type(module["model"]).__name__
    'Adapter'
    >>> callback.on_predict_end(None, module)
    >>> type(module["model"]).__name__
    'Sequential'
    """

    def __init__(self, submodule: str, options: dict[str, Any]) -> None:
        self.submodule, self.options = submodule, options
        self.adapter: Adapter | None = None
        self._classifier: nn.Module | None = None

    def on_predict_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Adapt the classifier, which is on its device by now."""
        classifier = self._find(pl_module)
        if self.adapter is None or classifier is not self._classifier:
            self.adapter, self._classifier = adapt(classifier, **self.options), classifier
        tensors = [*classifier.parameters(), *classifier.buffers()]
        self._put(pl_module, self.adapter.to(tensors[0].device))

    def on_predict_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Put the classifier back."""
        if self._classifier is not None:
            self._put(pl_module, self._classifier)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Put the classifier back."""
        self.on_predict_end(trainer, pl_module)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Drop the adapter."""
        self.adapter = self._classifier = None

    def _find(self, module: nn.Module) -> nn.Module:
        try:
            return module.get_submodule(self.submodule)
        except AttributeError as error:
            known = ", ".join(name for name, _ in module.named_children()) or "none"
            found = f"{type(module).__name__} has no submodule {self.submodule!r}, it has {known}"
            raise UnsuitableModel(f"{found}; name its classifier: adapt_predictions(NAME)") from error

    def _put(self, module: nn.Module, classifier: nn.Module) -> None:
        parent, _, name = self.submodule.rpartition(".")
        module.get_submodule(parent).add_module(name, classifier)
