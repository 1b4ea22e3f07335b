"""Probabilities in the place of logits, and whose fault an error is."""

import copy
from collections import namedtuple
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import BadImages, BadOutput, UnsuitableModel
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.norm.resibn import ResiBN
from resitta.norm.robust_bn import RobustBN
from resitta.training.network import ROWS, Answers, Network, Output

IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Pair = namedtuple("Pair", ["features", "logits"])


class Restless(nn.Module):
    """Everything a forward pass may disturb: dropout, a counter, a layer used twice, tied weights."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 1), self.norm)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.head.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        maps = self.deep(self.norm(self.stem(x)).relu())
        logits: Tensor = self.tied(self.head(self.drop(maps.mean((2, 3)))))
        return logits


class Wrapped(nn.Module):
    """A classifier whose answer is more than its logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    def forward(self, x: Tensor) -> Any:
        logits = self.net(x)
        answers = {
            "mapping": {"logits": logits, "features": x},
            "attribute": SimpleNamespace(logits=logits),
            "named": Pair(x, logits),
            "sequence": (x, logits),
            "volume": x,
            "labels": logits.argmax(1, keepdim=True).expand(-1, 5),
        }
        return answers[self.kind]


class WideBlocks(nn.Module):
    """As many weights per BatchNorm channel as a small wide residual network has."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 64, 128, 128]
        convolutions = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths)]
        pairs = [layer for conv in convolutions for layer in (conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU())]
        self.body = nn.Sequential(*pairs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


def addresses(tensors: Any) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors if tensor.numel()}


def test_forks_own_what_they_train_and_share_the_rest(model: nn.Module) -> None:
    network = Network(model)
    theirs = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    affine = {"1.weight", "1.bias", "4.weight", "4.bias"}
    for train, trained in [("none", set()), ("affine", affine), ("all", set(theirs))]:
        fork = network.fork(train)  # type: ignore[arg-type]
        ours = {name: tensor.data_ptr() for name, tensor in fork.all_parameters()}
        assert ours.keys() == theirs.keys()
        assert {name for name in theirs if ours[name] != theirs[name]} == trained
        assert {name.removeprefix("model.") for name, _ in fork.named_parameters()} == trained
        assert all(parameter.requires_grad for parameter in fork.parameters())
        torch.testing.assert_close(fork(IMAGES), model(IMAGES))


def test_an_adapter_needs_little_memory_of_its_own() -> None:
    model = WideBlocks()
    adapter = adapt(model, "resitta", strong_view=lambda images: images, update_every=6)
    adapter(IMAGES)
    assert adapter.stats.updates == 1
    networks = [module for module in adapter.modules() if isinstance(module, Network)] + [adapter.source]
    parts = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    own = {tensor.data_ptr(): tensor.nbytes for tensor in parts}
    for address in addresses(model.parameters()):
        own.pop(address, None)
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert 0 < sum(own.values()) < 0.05 * total


@pytest.mark.parametrize("training", [False, True])
def test_the_caller_s_model_is_left_alone(training: bool) -> None:
    model = Restless().train(training)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    for wrap in (BatchStatisticsBN, lambda layer: ResiBN(layer, 0.1), lambda layer: RobustBN(layer, 0.1)):
        fork = Network(model).fork("all").with_bn(wrap)
        torch.autograd.backward(fork(IMAGES).sum())
        with torch.no_grad():
            for parameter in fork.parameters():
                parameter.add_(1)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_dropout_is_never_active() -> None:
    model = Restless()
    fork = Network(model).fork()
    expected = model.eval()(IMAGES)
    fork.train()
    torch.testing.assert_close(fork(IMAGES), expected)
    assert not any(module.training for module in fork.model.modules())


def test_a_layer_used_twice_is_wrapped_once_and_moves_in_both_places() -> None:
    fork = Network(Restless()).fork("affine").with_bn(lambda layer: ResiBN(layer, 0.1))
    model: Any = fork.model
    assert model.norm is model.deep[1]
    assert isinstance(model.norm.layer, nn.BatchNorm2d)
    assert len(list(fork.parameters())) == 2


def test_tied_weights_stay_tied() -> None:
    model = Restless()
    shared: Any = Network(model).fork().model
    owned: Any = Network(model).fork("all").model
    assert shared.head.weight is shared.tied.weight
    assert shared.head.weight.data_ptr() == model.head.weight.data_ptr()
    assert owned.head.weight is owned.tied.weight
    assert owned.head.weight.data_ptr() != model.head.weight.data_ptr()
    assert len(list(owned.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("train", ["none", "affine", "all"])
def test_an_export_is_the_caller_s_architecture_again(train: Any) -> None:
    model = Restless().eval()
    exported = Network(model).fork(train).with_bn(lambda layer: ResiBN(layer, 0.1)).export()
    assert list(exported.state_dict()) == list(model.state_dict())
    assert [name for name, _ in exported.named_modules()] == [name for name, _ in model.named_modules()]
    assert all(parameter.requires_grad for parameter in exported.parameters())
    torch.testing.assert_close(exported(IMAGES), model(IMAGES))
    Restless().load_state_dict(exported.state_dict(), strict=True)
    assert not addresses(exported.state_dict().values()) & addresses(model.state_dict().values())


@pytest.mark.parametrize("train", ["none", "all"])
def test_an_export_keeps_tied_weights_tied(train: Any) -> None:
    exported: Any = Network(Restless()).fork(train).export()
    assert exported.head.weight is exported.tied.weight


def test_an_export_holds_the_statistics_and_parameters_and_goes_its_own_way(model: nn.Module) -> None:
    fork = Network(model).fork("affine").with_bn(lambda layer: RobustBN(layer, 0.5))
    for module in fork.modules():
        if isinstance(module, RobustBN):
            module.updating = True
    fork(IMAGES)
    for module in fork.modules():
        if isinstance(module, RobustBN):
            module.updating = False
    exported, expected = fork.export(), fork(IMAGES)
    torch.testing.assert_close(exported(IMAGES), expected)
    assert not torch.allclose(expected, model(IMAGES), atol=1e-3)
    with torch.no_grad():
        for tensor in (*exported.parameters(), *exported.buffers()):
            tensor.zero_()
    torch.testing.assert_close(fork(IMAGES), expected, rtol=0, atol=0)


def test_an_integer_parameter_is_carried_along() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5))
    model.register_parameter("version", nn.Parameter(torch.tensor([3]), requires_grad=False))
    fork = Network(model).fork("all")
    assert "version" not in dict(fork.model.named_parameters())
    assert fork.export().state_dict()["version"].tolist() == [3]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("mapping", "logits"),
        ("attribute", "logits"),
        ("named", "logits"),
        ("named", 1),
        ("sequence", 1),
        ("sequence", -1),
        ("sequence", lambda answer: answer[1]),
        ("volume", lambda answer: answer.mean((2, 3))),
    ],
)
def test_logits_are_found_where_output_says(kind: str, output: Output) -> None:
    model = Wrapped(kind)
    network = Network(model, output=output)
    expected = IMAGES.mean((2, 3)) if kind == "volume" else model.net(IMAGES)
    torch.testing.assert_close(network(IMAGES), expected)
    torch.testing.assert_close(network.fork()(IMAGES), expected)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("mapping", None, r"dict with keys \['features', 'logits'\].*output="),
        ("mapping", "logit", "output='logit' selects nothing from a dict with keys"),
        ("attribute", "scores", "output='scores' selects nothing from a SimpleNamespace"),
        ("sequence", 2, "output=2 selects nothing from a tuple"),
        (
            "volume",
            None,
            r"\(6, classes\).*, found \(6, 3, 8, 8\) of torch.float32; it labels pixels, and only classifiers",
        ),
        ("labels", None, r"float logits .*int64"),
        ("sequence", lambda answer: answer[1][:, :1], r"found \(6, 1\)"),
        ("sequence", lambda answer: answer[1][:3], r"found \(3, 5\)"),
    ],
)
def test_an_answer_without_logits_says_what_was_found(kind: str, output: Output, message: str) -> None:
    with pytest.raises(BadOutput, match=message):
        Network(Wrapped(kind), output=output)(IMAGES)


def test_images_that_the_model_refuses_are_named() -> None:
    with pytest.raises(BadImages, match=r"\(6, 5, 8, 8\).*channels"):
        Network(Restless())(torch.rand(6, 5, 8, 8))


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.scale = model.weight * 2
    with pytest.raises(UnsuitableModel, match="Linear cannot be copied"):
        Network(model)


def test_views_see_pixels_whatever_the_normalisation(model: nn.Module) -> None:
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    shape = (1, 3, 1, 1)
    seen: list[Tensor] = []

    def brighten(pixels: Tensor) -> Tensor:
        seen.append(pixels)
        return pixels * 0.5 + 0.5

    network = Network(model, normalized=(mean, std)).fork()
    found = network.augment((IMAGES - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape), brighten)
    torch.testing.assert_close(seen[0], IMAGES)
    torch.testing.assert_close(found * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape), IMAGES / 2 + 0.5)
    torch.testing.assert_close(Network(model).augment(IMAGES, brighten), IMAGES / 2 + 0.5)


def test_a_view_must_keep_the_shape(model: nn.Module) -> None:
    with pytest.raises(BadImages, match=r"\(6, 3, 8, 8\) into \(6, 3, 4, 8\)"):
        Network(model).augment(IMAGES, lambda images: images[:, :, :4])


@pytest.mark.parametrize("normalized", [None, ([0.5] * 3, [0.5] * 3)])
def test_a_view_that_writes_in_place_leaves_the_images_alone(model: nn.Module, normalized: Any) -> None:
    images = IMAGES.clone()
    Network(model, normalized=normalized).augment(images, lambda pixels: pixels.mul_(0.5))
    torch.testing.assert_close(images, IMAGES, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_augmented_images_keep_their_precision(model: nn.Module, dtype: torch.dtype) -> None:
    network = Network(model.to(dtype), normalized=([0.5] * 3, [0.25] * 3))
    assert network.augment(IMAGES.to(dtype), lambda pixels: pixels).dtype == dtype


def test_the_normalisation_is_where_the_model_is(model: nn.Module) -> None:
    network = Network(model.to("meta"), normalized=([0.5] * 3, [0.25] * 3))
    assert network.std is not None
    assert network.std.device.type == "meta"


METHODS = ["source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"]


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def confident(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.Softmax(dim=1))


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_returns_probabilities_is_refused_with_the_remedy(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(confident(model), method)
    for _ in range(2):
        with pytest.raises(
            BadOutput, match=r"returns probabilities .*; remove its final softmax, or .*output=torch.log"
        ):
            adapter(images(8))
    assert (adapter.samples, adapter.learner.updates) == (0, 0)


@pytest.mark.parametrize("method", ["tent", "lame", "resitta"])
def test_the_remedy_helps(model: nn.Module, method: str) -> None:
    adapter, plain = resitta.adapt(confident(model), method, output=torch.log), resitta.adapt(model, method)
    for seed in range(2):
        expected = plain(images(70, seed)).log_softmax(dim=1)
        torch.testing.assert_close(adapter(images(70, seed)).log_softmax(dim=1), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_of_single_images_is_refused_after_a_few(model: nn.Module, background: bool) -> None:
    adapter = resitta.adapt(confident(model), "resitta", background=background)
    for seed in range(ROWS - 1):
        adapter(images(1, seed))
    with pytest.raises(BadOutput, match="returns probabilities"):
        adapter(images(1, seed=9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_is_allowed_for(dtype: torch.dtype) -> None:
    probabilities = torch.randn(16, 1000, generator=torch.Generator().manual_seed(0)).mul(3).softmax(dim=1).to(dtype)
    with pytest.raises(BadOutput):
        Answers().take(images(16), probabilities, channels_last=False)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(8, 2),
        torch.tensor([[0.25, 0.75]]),
        torch.tensor([[0.25, 0.75]]).expand(8, 2),
        torch.cat((torch.full((7, 4), 0.25), torch.tensor([[0.3, 0.3, 0.3, 0.2]]))),
        torch.tensor([[1.5, -0.5], [2.0, -1.0], [0.0, 1.0], [0.5, 0.5], [3.0, -2.0]]),
        torch.full((8, 5), torch.nan),
    ],
)
def test_logits_that_look_like_probabilities_by_chance_are_taken(logits: Tensor) -> None:
    Answers().take(images(len(logits)), logits, channels_last=False)


def test_one_row_of_logits_settles_it() -> None:
    answers = Answers()
    answers.take(images(1), torch.tensor([[3.0, -1.0]]), channels_last=False)
    answers.take(images(16), torch.rand(16, 4).softmax(dim=1), channels_last=False)


def test_nothing_is_looked_at_once_it_is_settled(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(8))

    def look(answers: Answers, logits: Tensor) -> None:
        raise AssertionError

    monkeypatch.setattr(Answers, "_check", look)
    adapter(images(70))
    adapter.reset()
    adapter(images(70))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.Conv2d(5, 4, 3), "expected input"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 4)), "cannot be multiplied"),
        (lambda: nn.Conv2d(3, 4, 30), "Kernel size can't be greater"),
        (lambda: nn.MaxPool2d(30), "too small"),
        (lambda: nn.BatchNorm2d(7), "running_mean|elements"),
        (lambda: nn.Conv1d(3, 4, 3), "Expected|expected"),
    ],
)
def test_images_that_do_not_fit_the_weights_are_to_blame(model: nn.Module, layer: Any, message: str) -> None:
    adapter = resitta.adapt(nn.Sequential(layer(), model).eval(), "resitta")
    with pytest.raises(BadImages, match=rf"the model refused images of shape \(2, 3, 10, 10\): .*({message})"):
        adapter(images(2))


def test_a_layout_is_tried_only_while_it_is_unknown(model: nn.Module) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            vars(self)["failing"] = failing

        def forward(self, x: Tensor) -> Any:
            if failing:
                failing.pop()
                raise RuntimeError("once")
            return self.net(x)

        def __deepcopy__(self, memo: Any) -> "Fails":
            return Fails()

    failing: list[int] = []
    adapter = resitta.adapt(Fails(), "resitta")
    adapter(images(4))
    failing.append(1)
    with pytest.raises(RuntimeError, match="once"):
        adapter(images(4))
    assert adapter.samples == 4
