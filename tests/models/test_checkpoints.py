import pickle
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resitta.checkpoint.tree import same
from resitta.errors import BadData, MissingExtra
from resitta.models import Normalised, WideResNet, load_checkpoint, load_into
from resitta.models.checkpoints import dequantise, tidy

State = dict[str, Tensor]


def small() -> WideResNet:
    return WideResNet(depth=10, width=1)


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


@pytest.fixture
def state() -> State:
    return small().state_dict()


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "net"])
def test_a_training_checkpoint_is_unwrapped(tmp_path: Path, state: State, key: str) -> None:
    torch.save({"epoch": 7, "optimizer": {"lr": 0.1}, key: state}, tmp_path / "c.pt")
    assert same(load_checkpoint(tmp_path / "c.pt"), state)


def test_the_augmix_layout_where_model_is_a_string(tmp_path: Path, state: State) -> None:
    wrapped = {"model": "resnext", "best_acc": 0.9, "state_dict": OrderedDict(prefixed(state, "module."))}
    torch.save(wrapped, tmp_path / "c.pth.tar")
    assert same(load_checkpoint(str(tmp_path / "c.pth.tar")), state)


@pytest.mark.parametrize(
    ("normaliser", "prefix"),
    [(("mu", "sigma"), ""), (("normalize.mean", "normalize.std"), "model."), (("0.mean", "0.std"), "1.")],
)
def test_the_normaliser_of_a_robustbench_model_is_dropped(
    state: State, normaliser: tuple[str, ...], prefix: str
) -> None:
    wrapped = prefixed(state, prefix) | {name: torch.zeros(1, 3, 1, 1) for name in normaliser}
    assert same(tidy(wrapped, origin="x"), state)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["module.", "model.", "_orig_mod.", "0.", "1."]), max_size=3).map("".join))
def test_any_stack_of_prefixes_goes_from_the_start_only(prefix: str) -> None:
    plain = {"fc.module.weight": torch.ones(1), "layer.0.model.bias": torch.ones(1)}
    assert same(tidy(prefixed(plain, prefix), origin="x"), plain)


def test_a_prefix_that_not_all_names_share_stays() -> None:
    plain = {"0.weight": torch.ones(1), "1.weight": torch.ones(1), "model.weight": torch.ones(1)}
    assert same(tidy(plain, origin="x"), plain)


def test_int8_and_half_weights_become_float32(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    weight = torch.randint(-127, 128, (4, 3, 2, 2), dtype=torch.int8)
    scale = torch.rand(4)
    half, count = torch.rand(5).half(), torch.tensor(3)
    raw = {"w": weight, "w::scale": scale, "half": half, "count": count}
    save_file(raw, tmp_path / "c.safetensors")
    loaded = load_checkpoint(tmp_path / "c.safetensors")
    expected = torch.stack([weight[i].float() * float(scale[i]) for i in range(4)])
    assert same(loaded, {"w": expected, "half": half.float(), "count": count})
    assert loaded["half"].dtype == torch.float32
    assert same(dequantise(raw), loaded)


def test_weights_arrive_in_the_model(state: State) -> None:
    model = small()
    assert not torch.equal(model.conv1.weight, state["conv1.weight"])
    assert load_into(model, state) is model
    assert same(model.state_dict(), state)


def test_missing_batch_counters_are_tolerated(state: State) -> None:
    state = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    model = load_into(small(), state)
    assert torch.equal(model.fc.weight, state["fc.weight"])


def test_a_wrapped_model_takes_the_bare_checkpoint_and_its_own(state: State) -> None:
    wrapped = Normalised(small(), mean=(0.5,) * 3, std=(0.5,) * 3)
    load_into(wrapped, state)
    assert same(wrapped.model.state_dict(), state)
    assert same(load_into(small(), wrapped.state_dict()).state_dict(), state)


def test_a_model_with_normaliser_buffers_keeps_them(state: State) -> None:
    model = small()
    model.register_buffer("mu", torch.full((3,), 0.4))
    load_into(model, state | {"mu": torch.zeros(3)})
    assert model.get_buffer("mu").tolist() == pytest.approx([0.4] * 3)
    assert torch.equal(model.fc.weight, state["fc.weight"])


def test_a_parameter_is_required_even_if_named_like_a_normaliser() -> None:
    model = nn.Module()
    model.mean = nn.Parameter(torch.ones(1))
    model.fc = nn.Linear(1, 1)
    with pytest.raises(BadData, match="missing: mean"):
        load_into(model, nn.Linear(1, 1).state_dict() | {"mean": torch.zeros(1)})


def test_another_architecture_is_named_and_the_model_left_alone(tmp_path: Path, state: State) -> None:
    path = tmp_path / "deep.pt"
    torch.save(WideResNet(depth=16, width=1, classes=7).state_dict(), path)
    model = load_into(small(), state)
    with pytest.raises(BadData) as caught:
        load_into(model, path)
    message = str(caught.value)
    assert message.startswith(f"{path} does not fit WideResNet: unexpected: block1.layer.1.bn1.weight, ")
    assert "and 33 more" in message
    assert "of another shape: fc.weight (7, 64) instead of (10, 64), fc.bias (7,) instead of (10,)" in message
    assert "\n" not in message
    assert same(model.state_dict(), state)


def test_missing_weights_are_named(state: State) -> None:
    del state["fc.bias"]
    with pytest.raises(BadData, match=r"the state_dict does not fit WideResNet: missing: fc\.bias; build"):
        load_into(small(), state)


@pytest.mark.parametrize("found", [[1, 2], {}, {"epoch": 3}, {"state_dict": {"fc": [1.0]}}, {3: torch.ones(1)}])
def test_a_file_without_weights_is_refused(tmp_path: Path, found: object) -> None:
    torch.save(found, tmp_path / "c.pt")
    with pytest.raises(BadData, match=r"c\.pt holds no weights by name; save it anew"):
        load_checkpoint(tmp_path / "c.pt")


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(BadData, match=f"no checkpoint at {path}; download"):
            load_into(small(), path)


@pytest.mark.parametrize("name", ["c.pt", "c.safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, state: State, name: str, kept: float) -> None:
    path = tmp_path / name
    if name == "c.pt":
        torch.save(state, path)
    else:
        pytest.importorskip("safetensors.torch").save_file(state, path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(BadData, match="cannot be read as tensors alone: download it again"):
        load_checkpoint(path)


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=64), suffix=st.sampled_from([".pt", ".safetensors"]))
def test_no_content_gets_past_the_exception_tree(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("any") / f"c{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadData):
        load_checkpoint(path)


class Hostile:
    """Unpickling it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("writer", ["torch", "legacy torch", "pickle"])
def test_code_in_a_checkpoint_never_runs(tmp_path: Path, state: State, writer: str) -> None:
    path, trace = tmp_path / "c.pt", tmp_path / "trace"
    content = {"state_dict": state, "extra": Hostile(trace)}
    if writer == "pickle":
        path.write_bytes(pickle.dumps(Hostile(trace), protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=writer == "torch")
    with pytest.raises(BadData, match=r"c\.pt cannot be read as tensors alone.*if it holds Python objects"):
        load_checkpoint(path)
    assert not trace.exists()
    # The file is armed: an unsafe reader does run the code.
    if writer == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert trace.exists()


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[bench\]"):
        load_checkpoint(tmp_path / "c.safetensors")
