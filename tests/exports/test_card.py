import torch
from tests.conftest import stream
from torch import nn

import resitta
from resitta.checkpoint.fingerprint import Fingerprint
from resitta.exports.card import Learned, model_card, table


def card(adapter: resitta.Adapter) -> str:
    return model_card("a.onnx", [("file", "ONNX")], Learned.of(adapter))


def test_it_says_what_was_learned_from_what(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", nu_b=0.25, seed=7)
    for batch in torch.split(stream(300), 64):
        adapter(batch)
    text = card(adapter)
    assert text.startswith("# a.onnx\n\nSequential, adapted to unlabeled images by ResiTTA (resitta).\n")
    assert f"`{Fingerprint(model).content}`" in text
    for row in ("file | ONNX", "samples | 300", "updates | 4", "nu_b | `0.25`", "seed | `7`"):
        assert f"| {row} |" in text
    drift = adapter.stats.drift
    assert len(drift) == 2
    assert all(f"| `{layer}` | {value:.4g} |" in text for layer, value in drift.items())
    assert text.count("There was none.") == 2, "neither a guard nor a label prior"


def test_it_tells_of_the_guard_and_of_the_label_prior(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", guard=True, label_prior="temporal")
    assert "It never fired." in card(adapter)
    assert adapter.guard is not None
    adapter.guard.counts.update(unknown=3, drift=1)
    text = card(adapter)
    assert "| drift | 1 |\n| unknown | 3 |" in text
    assert "label prior corrected 0 of 0 predictions. It is not in the file: it corrects each prediction by" in text


def test_functions_and_source_data_are_named_not_printed(model: nn.Module) -> None:
    text = card(resitta.adapt(model, "resitta", strong_view=lambda images: images))
    assert "| strong_view | a function |" in text
    assert "lambda" not in text
    prepared = card(resitta.adapt(model, "eata", source=stream(64)))
    assert "`<statistics of 64 source images for eata" in prepared


def test_a_method_without_statistics_has_no_drift(model: nn.Module) -> None:
    assert card(resitta.adapt(model, "source")).endswith("from the source's.\n\nNone.\n")
    assert table(("one", "two"), []) == "None."
