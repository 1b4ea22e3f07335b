"""The benchmark from Python: models and methods of one's own, images in memory."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tools import OWN_METHOD
from torch import Tensor, nn

import resitta.bench
from resitta import methods
from resitta.bench.api import choose
from resitta.bench.experiments import METHODS
from resitta.bench.protocol import Protocol
from resitta.bench.runner import Bench, Job
from resitta.data.datasets import ArrayImages
from resitta.errors import BadData, BadSetting, UnknownName
from resitta.method import Learner, Method, list_methods
from resitta.methods import ResiTTA, Tent
from resitta.methods.source import SourceLearner
from resitta.training.network import Network, Trained

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture
def images() -> Arrays:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (60, 10, 10, 3), np.uint8), np.arange(60) % 5


@dataclass(frozen=True, kw_only=True)
class Opposite(Method):
    """Predicts what the source finds least likely."""

    name = "opposite"

    @property
    def trains(self) -> Trained:
        return "none"

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        return OppositeLearner(network)


class OppositeLearner(SourceLearner):
    def predict(self, images: Tensor) -> Tensor:
        return -self.network.predict(images)

    step = predict


def test_a_model_object_a_method_of_ones_own_and_arrays(model: nn.Module, images: Arrays, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "-1"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    records = resitta.bench.run(
        model,
        images,
        methods=["source", "resitta", Opposite(), f"{tmp_path}/own.py:mine"],
        seeds=[1, 2],
        corruptions=["clean", "fog"],
        order="iid",
    )
    assert [(r.method, r.seed) for r in records][:4] == [("source", 1), ("source", 2), ("resitta", 1), ("resitta", 2)]
    source, mine, from_file = records[0], records[4], records[6]
    assert mine.errors == from_file.errors != source.errors
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    sets = {("clean", 5): ArrayImages(*images)}
    plain = Bench(Protocol(corruptions=("clean",)), model, dict(sets), tmp_path, torch.device("cpu"), {})
    assert source.errors[0] == plain.record(Job(method=resitta.create("source"), seed=1)).errors[0]


def test_every_field_of_the_protocol_is_a_keyword(model: nn.Module, images: Arrays) -> None:
    wanted = Protocol(
        corruptions=("fog", "snow"),
        severity=3,
        order="ptta",
        delta=0.2,
        within_slot="shuffled",
        course="recurring",
        visits=2,
        per_domain=20,
        batch_size=16,
        corruption_seed=4,
    )
    (record,) = resitta.bench.run(model, images, ["source"], **vars(wanted))
    assert record.identity["protocol"] == {**vars(wanted), "corruptions": ["fog", "snow"]}
    assert record.samples == 80


def test_settings_and_presets_go_to_names(model: nn.Module, images: Arrays) -> None:
    given: dict[str, Any] = {
        "preset": "imagenet",
        "settings": {"lr": 0.5, "resitta.nu_b": 0.1},
        "corruptions": ["clean"],
    }
    named, instance = resitta.bench.run(model, images, ["resitta", ResiTTA(eta=0.3)], **given)
    assert {"lr": 0.5, "nu_b": 0.1, "eta": 0.05}.items() <= named.settings.items()
    assert instance.settings["lr"] == ResiTTA().lr


def test_nothing_is_left_on_disk_unless_a_folder_is_given(
    model: nn.Module, images: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []

    def bar(_: str) -> Any:
        return lambda done, total: seen.append(len(list(tmp_path.rglob("*.npy"))))

    resitta.bench.run(model, images, ["source"], corruptions=["fog"], progress=bar)
    assert max(seen) == 1, "corrupted images lie on disk during the run"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_keeps_what_is_finished(model: nn.Module, images: Arrays, tmp_path: Path) -> None:
    given: dict[str, Any] = {"methods": ["source"], "corruptions": ["fog"], "out": str(tmp_path / "out")}
    first, second = (resitta.bench.run(model, images, **given) for _ in range(2))
    again = resitta.bench.run(model, images, **given, rerun=True)
    assert [records.kept for records in (first, second, again)] == [(False,), (True,), (False,)]
    assert first == second
    assert again[0].errors == first[0].errors


@pytest.mark.parametrize("kind", ["uint8", "channels first", "floats", "tensors", "image set"])
def test_images_in_memory_come_in_many_forms(model: nn.Module, images: Arrays, kind: str) -> None:
    pixels, labels = images
    forms: dict[str, Any] = {
        "uint8": (pixels, labels.tolist()),
        "channels first": (pixels.transpose(0, 3, 1, 2), labels),
        "floats": (pixels / 255, labels),
        "tensors": (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255, torch.from_numpy(labels)),
        "image set": ArrayImages(pixels, labels),
    }
    expected = resitta.bench.run(model, images, ["source"], corruptions=["clean"])
    assert resitta.bench.run(model, forms[kind], ["source"], corruptions=["clean"])[0].errors == expected[0].errors


def test_names_work_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from resitta.conformance import tiny_network\ndef make(n): return tiny_network(3, n)"
    )
    np.save(tmp_path / "fog.npy", np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 5)
    model = f"{tmp_path}/own.py:make"
    (record,) = resitta.bench.run(model, str(tmp_path), ["source"], corruptions=["fog"], model_options={"n": 5})
    assert (record.identity["model"], record.identity["model_options"]) == (model, {"n": 5})


def test_threads_are_set_for_the_runs_and_set_back(model: nn.Module, images: Arrays) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()

    def bar(_: str) -> Any:
        return lambda done, total: seen.append(torch.get_num_threads())

    resitta.bench.run(model, images, ["source"], corruptions=["clean"], threads=before + 1, progress=bar)
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"images": 3}, BadData, "images are a path, an image set, or a pair of arrays .* found a int"),
        ({"images": (1, 2, 3)}, BadData, "found a tuple"),
        ({"seeds": 1}, BadSetting, r"seeds takes a list of whole numbers such as \[1, 2, 3\], found 1"),
        ({"seeds": []}, BadSetting, "seeds takes a list"),
        ({"threads": 0}, BadSetting, "threads must be >= 1"),
        ({"workers": 0}, BadSetting, "workers must be >= 1"),
        ({"engine": "dask"}, BadSetting, "name must be one of"),
        ({"severity": 9}, BadSetting, "severity must be <= 5"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(300, 7))}, BadSetting, "7 classes, the images have 5"),
    ],
)
def test_wrong_arguments_are_named(
    model: nn.Module, images: Arrays, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    arguments = {"model": model, "images": images, "methods": ["source"], "corruptions": ["clean"], **change}
    with pytest.raises(error, match=words):
        resitta.bench.run(**arguments)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program with a model class and a method class of its own, which runs a bench in another process."""
    path = tmp_path / "program.py"
    code = """
import numpy as np, torch, resitta.bench
from torch import nn
from resitta.conformance import tiny_network
class Own(nn.Sequential):
    pass
{method}
if __name__ == "__main__":
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8), np.arange(40) % 5
    options = dict(corruptions=["fog"])
    runs = [resitta.bench.run(Own(*tiny_network()), images, [Mine(rate=0.5), "source"], **options, **more)
            for more in ({{}}, dict(engine="processes", workers=1))]
    assert [run.nll for run in runs[0]] == [run.nll for run in runs[1]]
    assert runs[0][0].identity == runs[1][0].identity
"""
    path.write_text(code.format(method=OWN_METHOD.replace("FACTOR", "-1")))
    return path


@pytest.mark.slow
def test_objects_of_a_program_run_in_other_processes(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_what_cannot_leave_the_process_is_refused(images: Arrays, model: nn.Module) -> None:
    options: dict[str, Any] = {"corruptions": ["clean"], "engine": "processes", "workers": 1}
    model.hook = lambda: None  # type: ignore[assignment]
    with pytest.raises(
        BadSetting, match="the model and the images cannot be sent to another process .* engine='local'"
    ):
        resitta.bench.run(model, images, ["source"], **options)
    del model.hook
    with pytest.raises(BadSetting, match="resitta with its settings cannot be sent to another process"):
        resitta.bench.run(model, images, [ResiTTA(strong_view=lambda batch: batch)], **options)


@pytest.mark.slow
def test_an_interactive_session_is_told_to_use_a_file() -> None:
    code = """
import numpy as np, resitta.bench
from resitta.conformance import tiny_network
from resitta.methods import Source
class Mine(Source):
    name = "mine"
images = np.zeros((10, 16, 16, 3), np.uint8), np.arange(10) % 5
resitta.bench.run(tiny_network(), images, [Mine()], corruptions=["clean"], engine="processes")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert (
        "mine with its settings cannot be sent to another process (it belongs to an interactive session" in done.stderr
    )


def test_the_package_offers_its_names() -> None:
    assert {resitta.bench.Records.__name__, resitta.bench.run.__name__} <= set(resitta.bench.__all__)


def test_a_listing_picks_images_of_imagenet_c(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "ImageNet-C" / "fog" / "5" / "n01440764"
    folder.mkdir(parents=True)
    for number in range(4):
        image.new("RGB", (224, 224), (50 * number, 0, 0)).save(folder / f"{number}.JPEG")
    listing = tmp_path / "ids.txt"
    listing.write_text("n01440764/1.JPEG 0\nn01440764/3.JPEG 0\n")
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 8), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(network, nn.Linear(4, 1000))
    (record,) = resitta.bench.run(model, folder.parents[2], ["source"], corruptions=["fog"], listing=listing)
    assert record.samples == 2
    with pytest.raises(BadSetting, match="a listing belongs to ImageNet-C on disk"):
        resitta.bench.run(model, (np.zeros((2, 8, 8, 3), np.uint8), np.arange(2)), listing=listing)


def test_names_files_and_instances(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "1"))
    chosen = choose(
        ["tent", f"{tmp_path}/own.py:mine", ResiTTA(eta=0.02)],
        preset="imagenet",
        settings={"mine.rate": 0.3, "lr": 0.5},
    )
    assert [method.name for method in chosen] == ["tent", "mine", "resitta"]
    assert (vars(chosen[0])["lr"], vars(chosen[1])["rate"]) == (0.5, 0.3)
    assert chosen[2] == ResiTTA(eta=0.02), "an instance is taken as it is"


def test_all_stands_for_every_registered_method(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "1"))
    names = [method.name for method in choose(["all"])]
    assert names[: len(METHODS)] == list(METHODS)
    assert sorted(names) == list_methods()
    both = choose([f"{tmp_path}/own.py:mine", "all"])
    assert [method.name for method in both] == ["mine", *names]


def test_the_same_method_is_run_once() -> None:
    assert choose(["tent", "tent", Tent(), Tent(lr=0.5)]) == [Tent(), Tent(lr=0.5)]


@pytest.mark.parametrize(
    ("given", "settings", "error", "words"),
    [
        ("tent", {}, BadSetting, r"methods takes a list such as \['source', 'resitta'\], found 'tent'"),
        ([], {}, BadSetting, "at least one method"),
        ([3], {}, BadSetting, "found a int"),
        (["tnet"], {}, UnknownName, "Did you mean 'tent'"),
        (["tent"], {"eta": 1}, UnknownName, "no method of this bench has the setting 'eta'"),
        ([methods.Tent()], {"lr": 1}, UnknownName, "no method of this bench has the setting 'lr'"),
    ],
)
def test_wrong_choices_are_refused(
    given: object, settings: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose(given, settings=settings)  # type: ignore[arg-type]


def test_a_method_without_a_name_is_refused() -> None:
    class Nameless(Tent):
        name = ""

    with pytest.raises(BadSetting, match=r"Nameless has no name to report it by; put @resitta.register"):
        choose([Nameless()])
