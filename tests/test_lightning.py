"""A trainer of Lightning predicts with an adapter in the place of the classifier."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from torch import Tensor, nn
from torch.utils.data import DataLoader

import resitta
from resitta.errors import MissingExtra, UnsuitableModel
from resitta.lightning import PACKAGES, AdaptedPrediction, adapt_predictions

IMAGES = torch.split(stream(192), 48)


def expected(**options: Any) -> list[Tensor]:
    adapter = resitta.adapt(small_network(), "resitta", **options)
    return [adapter(batch) for batch in IMAGES]


def predicted(callback: AdaptedPrediction, module: nn.Module) -> list[Tensor]:
    """What a trainer does."""
    callback.on_predict_start(None, module)
    with torch.inference_mode():
        logits = [module.get_submodule(callback.submodule)(batch) for batch in IMAGES]
    callback.on_predict_end(None, module)
    return logits


@pytest.mark.parametrize("name", ["model", "inner.net"])
def test_predictions_adapt_and_the_classifier_is_put_back(model: nn.Module, name: str) -> None:
    parent = nn.Module()
    parent.add_module(name.rpartition(".")[2], model)
    module = parent if name == "model" else nn.ModuleDict({"inner": parent})
    callback = AdaptedPrediction(name, {"method": "resitta", "seed": 3})
    assert all(map(torch.equal, predicted(callback, module), expected(seed=3)))
    assert module.get_submodule(name) is model
    assert callback.adapter is not None
    assert callback.adapter.samples == 192


def test_a_further_predict_continues_and_training_starts_again(model: nn.Module) -> None:
    module = nn.ModuleDict({"model": model})
    callback = AdaptedPrediction("model", {})
    first = predicted(callback, module)
    predicted(callback, module)
    assert callback.adapter is not None
    assert callback.adapter.samples == 384
    callback.on_fit_start(None, module)
    assert all(map(torch.equal, predicted(callback, module), first))


def test_another_classifier_gets_another_adapter(model: nn.Module) -> None:
    callback = AdaptedPrediction("model", {})
    for _ in range(2):
        predicted(callback, nn.ModuleDict({"model": small_network()}))
    assert callback.adapter is not None
    assert callback.adapter.samples == 192


def test_after_an_error_the_classifier_is_back(model: nn.Module) -> None:
    module = nn.ModuleDict({"model": model})
    callback = AdaptedPrediction("model", {})
    callback.on_exception(None, module, KeyboardInterrupt())
    callback.on_predict_start(None, module)
    callback.on_exception(None, module, KeyboardInterrupt())
    assert module["model"] is model


def test_a_wrong_name_is_told(model: nn.Module) -> None:
    with pytest.raises(
        UnsuitableModel, match="ModuleDict has no submodule 'model', it has net, head; name its classifier"
    ):
        predicted(AdaptedPrediction("model", {}), nn.ModuleDict({"net": model, "head": nn.Identity()}))


@pytest.mark.parametrize("present", [PACKAGES[:1], PACKAGES[1:], PACKAGES])
def test_the_callback_is_one_of_every_lightning_in_use(
    present: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {name: type("Callback", (), {}) for name in present}
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, kind in kinds.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Callback=kind))
    callback = adapt_predictions("net", "tent", lr=0.01)
    assert all(isinstance(callback, kind) for kind in kinds.values())
    assert (callback.submodule, callback.options) == ("net", {"method": "tent", "lr": 0.01})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[lightning\]"):
        adapt_predictions()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_real_trainer(package: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning: Any = pytest.importorskip(package)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def predict_step(self, batch: Tensor) -> Tensor:
            logits: Tensor = self.model(batch)
            if logits.isnan().any():
                raise ArithmeticError
            return logits

    callback, module = adapt_predictions("model"), Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    images: Any = DataLoader(list(torch.cat(IMAGES)), batch_size=48)  # type: ignore[arg-type]
    trainer = lightning.Trainer(accelerator="cpu", devices=1, callbacks=[callback], **quiet)
    logits = trainer.predict(module, images)
    assert all(map(torch.equal, logits, expected()))
    assert module.model is model
    assert callback.adapter.stats.updates == 3
    monkeypatch.setattr(type(callback.adapter), "forward", lambda *_: torch.full((48, 5), torch.nan))
    with pytest.raises(ArithmeticError):
        trainer.predict(module, images)
    assert module.model is model
