import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tools import OWN_METHOD
from torch import nn

import resitta
from resitta import method
from resitta.bench.protocol import Protocol
from resitta.bench.record import read_json, write_json
from resitta.bench.runner import Bench, BenchSpec, Job, usable_device, weights_digest
from resitta.bench.source_digest import method_source, model_source
from resitta.conformance import tiny_network
from resitta.data.datasets import ArrayImages
from resitta.errors import BadData, BadSetting
from resitta.method import Method, create
from resitta.models import create as create_model
from resitta.models import user_code


@pytest.fixture
def bench(model: nn.Module, tmp_path: Path) -> Bench:
    protocol = Protocol(corruptions=("fog", "snow"))
    rng = np.random.default_rng(0)
    sets = {
        domain: ArrayImages(rng.integers(0, 256, (100, 3, 10, 10), np.uint8), np.arange(100) % 5)
        for domain in protocol.domains()
    }
    return Bench(protocol, model, dict(sets), tmp_path, torch.device("cpu"), {"model": "small"})


def test_a_finished_run_is_never_run_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(method=create(name), seed=seed) for name in ("source", "resitta") for seed in (1, 2)]
    first = [bench.record(job) for job in jobs]
    assert len(list(bench.out.glob("*.json"))) == 4
    monkeypatch.setattr("resitta.bench.runner.run_stream", lambda *_, **__: pytest.fail("ran again"))
    assert [bench.record(job) for job in jobs] == first
    assert [record.seed for record in first] == [1, 2, 1, 2]


def test_whatever_defines_a_run_changes_its_file(bench: Bench, model: nn.Module) -> None:
    job = Job(method=create("resitta"), seed=1)
    paths = {
        bench.path(job),
        bench.path(Job(method=create("resitta"), seed=2)),
        bench.path(Job(method=create("resitta", eta=0.02), seed=1)),
        Bench(Protocol(corruptions=("fog",)), bench.model, bench.sets, bench.out, bench.device, bench.about).path(job),
        Bench(bench.protocol, bench.model, bench.sets, bench.out, bench.device, {"model": "other"}).path(job),
    }
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    paths.add(bench.path(job))
    assert len(paths) == 6


def test_the_title_names_what_was_changed() -> None:
    assert Job(method=create("resitta", eta=0.05), seed=3).title == "resitta, eta=0.05, seed 3"
    assert Job(method=create("tent"), seed=1).title == "tent, seed 1"


def test_the_digest_sees_every_weight(model: nn.Module) -> None:
    before = weights_digest(model)
    assert weights_digest(model) == before
    with torch.no_grad():
        list(model.parameters())[-1][0] += 1
    assert weights_digest(model) != before


SCRIPT = """
import sys, torch, numpy as np
from pathlib import Path
torch.set_num_threads(1)
from resitta.bench.runner import Bench, Job
from resitta.bench.protocol import Protocol
from resitta.conformance import tiny_network
from resitta.method import create
from resitta.data.datasets import ArrayImages
protocol = Protocol(corruptions=("fog", "snow"))
rng = np.random.default_rng(0)
labels = np.arange(1500) % 5
sets = {d: ArrayImages(rng.integers(0, 256, (1500, 3, 16, 16), np.uint8), labels) for d in protocol.domains()}
bench = Bench(protocol, tiny_network(), sets, Path(sys.argv[1]), torch.device("cpu"), {})
jobs = [Job(method=create(name), seed=seed) for name in ("source", "resitta", "rotta") for seed in (1, 2)]
for record in [bench.record(job) for job in jobs]:
    print(record.method, record.seed, record.errors, flush=True)
"""


@pytest.mark.slow
def test_a_killed_bench_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stdout=subprocess.PIPE, text=True)

    whole, _ = start(tmp_path / "whole").communicate()
    victim = start(tmp_path / "killed")
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("*.json")}
    assert 2 <= len(finished) < 6, "killed in the middle"
    resumed, _ = start(tmp_path / "killed").communicate()
    assert resumed == whole
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items()), "nothing finished was run again"


def test_the_identity_holds_the_version_and_the_source_of_the_method(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(method=create("tent"), seed=1)
    identity, path = bench.identity(job), bench.path(job)
    assert identity["version"] == resitta.__version__
    assert identity["method_source"] == method_source(resitta.methods.Tent)
    assert bench.path(replace(job, source="another digest")) != path
    monkeypatch.setattr(resitta, "__version__", "99.0")
    assert bench.path(job) != path


def import_mine(path: Path) -> type[Method]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return method._methods.pop("mine")


def test_a_changed_method_does_not_return_its_old_result(bench: Bench, tmp_path: Path) -> None:
    losses = []
    for version, factor in enumerate(["1", "-1"]):
        path = tmp_path / f"mine_{version}.py"  # as two versions of one file would be in two processes
        path.write_text(OWN_METHOD.replace("FACTOR", factor))
        losses.append(bench.record(Job(method=import_mine(path)(), seed=1)).nll)
        del sys.modules[path.stem]
    assert losses[0] != losses[1]


def test_a_run_again_replaces_the_record(bench: Bench) -> None:
    job = Job(method=create("source"), seed=1)
    first = bench.record(job)
    content = read_json(bench.path(job))
    content["run"]["ece"] = 77.0
    content["made"] = "2001-02-03T04:05:06+00:00"
    write_json(bench.path(job), content)
    assert (bench.record(job).ece, bench.record(job).made) == (77.0, "2001-02-03T04:05:06+00:00")
    again = bench.record(job, rerun=True)
    assert again.ece == first.ece
    assert again.made >= first.made > "2020"
    assert bench.record(job) == again
    assert len(list(bench.out.glob("*.json"))) == 1


def test_what_cannot_be_compared_is_run_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resitta.bench.runner.method_source", lambda _: None)
    job = Job(method=create("source"), seed=1)
    bench.record(job)
    assert bench.path(job).exists()
    assert not bench.finished(job)
    monkeypatch.undo()
    bench.record(job)
    assert bench.finished(job)
    unknown_model = replace(bench, about={"model_source": None})
    unknown_model.record(job)
    assert not unknown_model.finished(job)


def test_a_record_of_another_run_is_not_kept(bench: Bench, tmp_path: Path) -> None:
    job = Job(method=create("source"), seed=1)
    bench.record(job)
    content = read_json(bench.path(job))
    here = replace(bench, out=tmp_path / "here")
    assert here.keep(job, content) == bench.record(job)
    with pytest.raises(BadData, match=r"source, seed 1 is not the requested run: its weights was not the same"):
        here.keep(job, content | {"weights": "others"})


def test_a_recipe_travels_and_opens_the_same_bench(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from resitta.conformance import tiny_network as make")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "fog.npy", rng.integers(0, 256, (50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 5)
    torch.save(tiny_network().state_dict(), tmp_path / "weights.pt")
    spec = BenchSpec(
        protocol=Protocol(corruptions=("fog",), per_domain=5),
        model=f"{tmp_path}/mine.py:make",
        data=tmp_path,
        checkpoint=tmp_path / "weights.pt",
        out=tmp_path / "out",
    )
    travelled = pickle.loads(pickle.dumps(spec))
    assert travelled == spec
    assert hash(travelled) == hash(spec)
    bench = travelled.open()
    assert [len(images) for images in bench.sets.values()] == [5]
    source = bench.about.pop("model_source")
    assert source == model_source(str(spec.model))["model_source"] is not None
    assert bench.about == {"model": spec.model, "checkpoint": "weights.pt", "data": tmp_path.name}
    assert torch.equal(next(bench.model.parameters()), next(tiny_network().parameters()))


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(BadSetting, match="device 'cuda:99' cannot be used here"):
        usable_device("cuda:99")


def spec(model: str | nn.Module, classes: int = 10, **more: Any) -> BenchSpec:
    rng = np.random.default_rng(0)
    images = ArrayImages(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % classes)
    return BenchSpec(
        protocol=Protocol(corruptions=("clean",)), model=model, data=images, **({"out": Path("out")} | more)
    )


def test_random_weights_are_named_and_recorded(tmp_path: Path) -> None:
    untrained = spec("wrn16x1").open()
    torch.rand(1)
    again = spec("wrn16x1").open()
    assert untrained.about["untrained"] is True
    assert untrained.warning.startswith("wrn16x1 has random weights; give it a checkpoint")
    assert weights_digest(untrained.model) == weights_digest(again.model), "so that all processes have the same"
    torch.save(untrained.model.state_dict(), tmp_path / "weights.pt")
    trained = spec("wrn16x1", checkpoint=tmp_path / "weights.pt").open()
    assert not trained.warning
    assert "untrained" not in trained.about


def test_making_a_model_leaves_the_random_numbers_of_the_caller_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    spec("wrn16x1").open()
    assert torch.equal(torch.rand(3), expected)


def test_options_of_the_model_are_part_of_the_identity() -> None:
    bench = spec("wrn16x1", classes=4, model_options=(("classes", 4),)).open()
    assert bench.about["model_options"] == {"classes": 4}
    assert "model_options" not in spec("wrn16x1").open().about


@pytest.mark.parametrize("classes", [4, 12])
def test_another_number_of_classes_is_refused(classes: int) -> None:
    words = rf"the model has 10 classes, the images have {classes}: make the model for {classes} \(--model-set"
    with pytest.raises(BadSetting, match=words) as caught:
        spec("wrn16x1", classes=classes).open()
    assert ("ArrayImages(x, y, classes=10)" in str(caught.value)) == (classes < 10)


def test_classes_are_compared_before_any_image_is_corrupted(tmp_path: Path) -> None:
    wrong = replace(spec("wrn16x1", classes=4, out=tmp_path), protocol=Protocol(corruptions=("fog",)))
    with pytest.raises(BadSetting, match="10 classes"):
        wrong.open()
    assert list(tmp_path.iterdir()) == []


def test_published_sets_are_compared_too(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.zeros((50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 7)
    with pytest.raises(BadSetting, match="the model has 10 classes, the images have 7"):
        BenchSpec(protocol=Protocol(corruptions=("fog",)), model="wrn16x1", data=tmp_path, out=tmp_path).open()


def test_a_part_of_the_classes_may_be_declared() -> None:
    images = ArrayImages(np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 2, 3], classes=10)
    assert replace(spec("wrn16x1"), data=images).open().sets


def test_a_module_is_used_as_it_is(model: nn.Module) -> None:
    model.train()
    bench = spec(model, classes=5).open()
    assert bench.model is model
    assert model.training
    assert (bench.about["model"], bench.about["data"], bench.warning) == ("Sequential", "ArrayImages", "")
    assert bench.about["model_source"] == model_source(model)["model_source"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint": Path("weights.pt")}, "checkpoint belongs to a model given by name"),
        ({"model_options": (("classes", 3),)}, "model_options belongs to a model given by name"),
        ({"size": 32}, "size belongs to images on disk"),
    ],
)
def test_options_that_say_nothing_are_refused(model: nn.Module, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        spec(model, **options)


def test_a_module_of_a_users_file_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\nclass Own(nn.Sequential): pass\n"
    code += "from resitta.conformance import tiny_network\ndef make(): return Own(*tiny_network())"
    (tmp_path / "mine.py").write_text(code)
    given = spec(create_model(f"{tmp_path}/mine.py:make"), classes=5)
    parcel = pickle.dumps(given)
    for name in user_code._loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(user_code, "_loaded", {})
    assert pickle.loads(parcel).open().about == given.open().about
