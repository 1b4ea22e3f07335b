import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.bench.protocol import Protocol
from resitta.bench.recipe import Recipe, usable_device
from resitta.bench.sources import model_source
from resitta.checks import tiny_network
from resitta.errors import BadSetting


def test_a_recipe_travels_and_opens_the_same_bench(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from resitta.checks import tiny_network as make")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "fog.npy", rng.integers(0, 256, (50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 5)
    torch.save(tiny_network().state_dict(), tmp_path / "weights.pt")
    recipe = Recipe(
        protocol=Protocol(corruptions=("fog",), per_domain=5),
        model=f"{tmp_path}/mine.py:make",
        data=tmp_path,
        checkpoint=tmp_path / "weights.pt",
        out=tmp_path / "out",
    )
    travelled = pickle.loads(pickle.dumps(recipe))
    assert travelled == recipe
    assert hash(travelled) == hash(recipe)
    bench = travelled.open()
    assert [len(images) for images in bench.sets.values()] == [5]
    source = bench.about.pop("model_source")
    assert source == model_source(str(recipe.model))["model_source"] is not None
    assert bench.about == {"model": recipe.model, "checkpoint": "weights.pt", "data": tmp_path.name}
    assert torch.equal(next(bench.model.parameters()), next(tiny_network().parameters()))


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(BadSetting, match="device 'cuda:99' cannot be used here"):
        usable_device("cuda:99")
