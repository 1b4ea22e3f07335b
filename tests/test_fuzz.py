"""Thousands of bad inputs: nothing but the documented exceptions comes back, and no adapter is changed."""

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from resitta import Adapter, Guard, ResittaError, adapt, list_methods
from resitta.cli import main
from resitta.conformance import tiny_network
from resitta.data.datasets import open_images


def examples(count: int) -> Callable[[Any], Any]:
    """So many examples, the same in every run."""
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=slow)


@contextmanager
def documented_errors() -> Iterator[None]:
    """Let an exception of the library's own tree pass, if it says something."""
    try:
        yield
    except ResittaError as error:
        if not str(error):
            raise AssertionError("an error without a message") from error


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.lists(st.floats(), max_size=3),
    st.tuples(st.lists(st.floats(), max_size=3), st.lists(st.floats(), max_size=3)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(object),
)

# --- adapt ----------------------------------------------------------------------------------------------------------

names = st.sampled_from([*list_methods(), "", "tnet", "RESITTA"])
models = st.one_of(
    st.just(tiny_network()),
    junk,
    st.sampled_from(
        [nn.Linear(3, 2), nn.Sequential(), nn.LazyBatchNorm2d(), nn.BatchNorm2d(3, track_running_stats=False)]
    ),
)
keywords = ["preset", "output", "normalized", "non_finite", "guard", "lr", "eta", "nu", "capacity", "strong_view", "x"]
options = st.dictionaries(st.sampled_from(keywords), st.one_of(junk, st.just("cifar10"), st.just("skip")), max_size=3)


@examples(500)
@given(model=models, method=st.one_of(names, junk), seed=st.one_of(st.just(0), junk), options=options)
def test_adapt(model: Any, method: Any, seed: Any, options: dict[str, Any]) -> None:
    with documented_errors():
        adapt(model, method, seed=seed, **options)


@examples(250)
@given(options=st.dictionaries(st.sampled_from([*Guard.__dataclass_fields__]), junk, max_size=4))
def test_guard(options: dict[str, Any]) -> None:
    with documented_errors():
        Guard(**options)


# --- calling an adapter ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    """One adapter for all calls; it must stay what it is."""
    adapter = adapt(tiny_network(), "resitta", guard=True)
    adapter(pictures(80))
    return adapter


def pictures(n: int) -> Tensor:
    coarse = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, size=(16, 16), mode="bicubic").clamp(0, 1)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors with something wrong about them: shape, type, range or a value."""
    shape = draw(st.one_of(st.lists(st.integers(0, 5), max_size=5), st.just([2, 3, 16, 16])))
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool]
    kind = draw(st.sampled_from([*kinds, torch.complex64]))
    value = draw(st.sampled_from([0.0, 0.5, -0.1, 1.1, 255.0, float("nan"), float("inf"), -float("inf"), 1e30]))
    images = torch.full(shape, 0.5)
    if images.numel():
        images.view(-1)[draw(st.integers(0, images.numel() - 1))] = value
    return images.nan_to_num(0).to(kind) if kind in (torch.uint8, torch.int64, torch.bool) else images.to(kind)


@examples(700)
@given(images=st.one_of(tensors(), tensors(), junk))
def test_calls(adapter: Adapter, images: Any) -> None:
    before, logits = fingerprint(adapter), None
    with documented_errors():
        logits = adapter(images)
    if logits is None:
        assert fingerprint(adapter) == before
    else:
        assert logits.shape == (len(images), 5)
        assert logits.isfinite().all()


def fingerprint(adapter: Adapter) -> bytes:
    """All of an adapter's state as bytes."""
    parts = [str(adapter.samples).encode(), adapter.generator.get_state().numpy().tobytes()]

    def gather(value: Any) -> None:
        if isinstance(value, Tensor):
            parts.append(value.detach().numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                parts.append(str(key).encode())
                gather(item)
        else:
            parts.append(repr(value).encode())

    gather(dict(adapter.learner.state_dict()))
    return b"|".join(parts)


# --- states made by hand ----------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"capacity": 8, "update_every": 8, "reset_on_shift": 2.0, "guard": Guard(window=8)}
odd: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, -1, 0, 7, 10**30, 0.5, float("nan"), "", "odd", [], {}, ()]),
    st.sampled_from([torch.zeros(0), torch.ones(3, 2), torch.tensor(-1), torch.tensor([torch.nan]), torch.ones(8)]),
)


@pytest.fixture(scope="module")
def by_hand() -> Adapter:
    """An adapter whose state is tampered with."""
    adapter = adapt(tiny_network(), "resitta", **SMALL)
    for step in range(9):
        adapter(pictures(90)[step * 8 : step * 8 + 8])
    return adapter


@pytest.fixture(scope="module")
def untouched() -> list[Adapter]:
    """The adapter that refused the last state, and so is as it was, if there is one."""
    return []


def places(tree: Any) -> list[tuple[Any, Any]]:
    """All pairs of a container and a key in it."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [place for key in keys for place in [(tree, key), *places(tree[key])]]


@examples(300)
@given(data=st.data())
def test_states_made_by_hand(by_hand: Adapter, untouched: list[Adapter], data: st.DataObject) -> None:
    """Either a state is refused, and nothing is changed, or the adapter goes on with it."""
    state = dict(by_hand.state_dict())
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(state)), label="place")
        if isinstance(container[key], Tensor) and container[key].numel() and data.draw(st.booleans()):
            value = data.draw(st.sampled_from([torch.nan, torch.inf, -1.0, 2.0, 1e30]))
            container[key] = container[key].clone()
            container[key].view(-1)[0] = value if container[key].is_floating_point() else 77
        else:
            container[key] = data.draw(odd, label="value")
    other = untouched.pop() if untouched else adapt(tiny_network(), "resitta", **SMALL)
    before = fingerprint(other)
    try:
        other.load_state_dict(state)
    except ResittaError:
        assert fingerprint(other) == before
        untouched.append(other)
    else:
        for images in torch.split(pictures(24), 8):
            assert other(images).isfinite().all()


# --- the command line -----------------------------------------------------------------------------------------------

COMMANDS = ["bench", "reproduce", "report", "corrupt", "data", "check", "methods", "models", "bemch"]
FLAGS = ["--seeds", "--methods", "--set", "--size", "--severity", "--order", "--delta", "--per-domain", "--format"]
FLAGS += ["--out", "--batch-size", "--device", "--layout", "--corruptions", "--preset", "--checkpoint", "-h", "--"]
WORDS = ["wrn16x1", "nowhere", "empty", "table1", "fetch", "cifar10c", "0", "-1", "1e999", "nan", "fog", "clean", "é"]
WORDS += ["lr=x", "resitta.eta=9", "file.py:make", "os:system", "timm:none", "cuda:99", ".", "broken.zip", "latex"]
tokens = st.one_of(st.sampled_from(FLAGS), st.sampled_from(WORDS), st.text(max_size=6))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing useful in it; the commands that would take long or reach out do nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "file.py").write_text("def make():\n    return 3\n")
    monkeypatch.setattr("resitta.data.fetch", lambda *_, **__: None)
    monkeypatch.setattr("resitta.conformance.check_method", lambda *_, **__: [])
    return tmp_path


@examples(250)
@given(command=st.sampled_from(COMMANDS), arguments=st.lists(tokens, max_size=6))
def test_command_line(place: Path, command: str, arguments: list[str]) -> None:
    assert main([command, *arguments]) in (0, 2)


# --- reading data ---------------------------------------------------------------------------------------------------


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("cat/a.png", "cat/b.jpg", "dog/c.png"):
            archive.writestr(name, a_picture(name.rpartition(".")[2]))
    return buffer.getvalue()


def a_picture(form: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, {"jpg": "jpeg"}.get(form, form))
    return buffer.getvalue()


def an_array(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(shape, np.uint8))
    return buffer.getvalue()


GOOD = {
    "set.zip": a_zip(),
    "folder/cat/a.png": a_picture("png"),
    "folder/dog/b.jpg": a_picture("jpg"),
    "folder/dog/c.bmp": a_picture("bmp"),
    "arrays/fog.npy": an_array((50, 4, 4, 3)),
    "arrays/labels.npy": an_array((50,)),
    "batches/test_batch": b"\x80\x02}q\x00(X\x04\x00\x00\x00dataq\x01X\x06\x00\x00\x00labelsq\x02]q\x03K\x01au.",
}


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, bytes]:
    """One of the good files, cut, with bytes changed, or with a piece repeated."""
    name = draw(st.sampled_from(sorted(GOOD)))
    content = bytearray(GOOD[name])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(["cut", "change", "change", "repeat"]))
        if how == "cut":
            del content[at:]
        elif how == "change" and content:
            content[at] = draw(st.integers(0, 255))
        else:
            content[at:at] = content[at : at + draw(st.integers(0, 40))]
    return name, bytes(content)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good files on disk."""
    root = tmp_path_factory.mktemp("shelf")
    for name, content in GOOD.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@examples(600)
@given(damaged=damage())
def test_data_readers(shelf: Path, damaged: tuple[str, bytes]) -> None:
    name, content = damaged
    top = name.partition("/")[0]
    options: dict[str, Any] = {"corruption": "fog", "severity": 5} if top == "arrays" else {}
    (shelf / name).write_bytes(content)
    with documented_errors():
        images = open_images(shelf / top, **options)
        for index in range(len(images)):
            assert images.read([index]).dtype == torch.uint8
    (shelf / name).write_bytes(GOOD[name])
