import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.conformance import CHECKS, spread_images, spread_network, tiny_network
from resitta.conformance.subject import Norm
from resitta.errors import BadImages, BadSetting, NonConformant, UnsuitableModel
from resitta.method import Learner, Method, get_method, list_methods
from resitta.methods.tent import TentLearner
from resitta.norm.requirements import lack
from resitta.training.network import Network

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_rdumb.py"
QUICK: dict[str, dict[str, Any]] = {
    "cotta": {"views": 2},
    "deyo": {"plpd": 0.0, "destroy": "pixel"},  # a mean over tokens does not see patches change places
}

NO_FEEDBACK = ("tide",)
"""Methods that refuse to learn from corrected predictions."""
GROUP_NORM = spread_network(norm="group_norm")


def prior_of(name: str) -> dict[str, Any]:
    """A label prior, with feedback where a method takes it."""
    return {"label_prior": "temporal", "feedback": name not in NO_FEEDBACK}


def variants(name: str) -> dict[Any, str]:
    """The presets of a method that differ in more than rates and bounds: these are the floats."""
    found: dict[Any, str] = {}
    for preset, settings in get_method(name).presets.items():
        found.setdefault(str([(key, v) for key, v in settings.items() if not isinstance(v, float)]), preset)
    return found


VARIANTS = [(name, preset) for name in list_methods() for preset in variants(name).values()]


@pytest.mark.parametrize(("name", "preset"), VARIANTS)
def test_every_registered_method_conforms_with_its_presets(name: str, preset: str) -> None:
    method = resitta.create(name, preset=preset, **QUICK.get(name, {}))
    assert resitta.check_method(method) == tuple(check.__name__ for check in CHECKS)


@pytest.mark.parametrize("network", get_args(Norm))
@pytest.mark.parametrize("name", list_methods())
def test_every_registered_method_conforms_on_every_network_it_accepts(name: str, network: Norm) -> None:
    """Those with GroupNorm have a label prior as well, whose own checks are the same on every network."""
    method = resitta.create(name, **QUICK.get(name, {}), **(prior_of(name) if network == "group_norm" else {}))
    if lack(spread_network(norm=network), method.needs) is None:
        if network != "batch_norm":  # checked above, with the presets
            assert resitta.check_method(method, network=network) == tuple(check.__name__ for check in CHECKS)
        return
    with pytest.raises(UnsuitableModel) as refused:
        resitta.check_method(method, network=network)
    reason, _, choice = str(refused.value).partition("; use method=")
    assert reason == f"{name} needs BatchNorm layers, and Sequential has none"
    able = [n for n in list_methods() if get_method(n).needs in ("nothing", "norm")]
    assert [word.strip("',") for word in choice.split() if word.startswith("'")] == able
    assert choice.endswith(", which work on this model")


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(BadSetting, match="network must be one of 'batch_norm', 'layer_norm', 'group_norm', found 'x'"):
        resitta.check_method("tent", network="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"reset_on_shift": 2.0}, {"anchor": 0.1, "bank_bytes": True, "bank_device": "cpu"}, {"norm": "adbn"}]
)
def test_options_of_resitta_conform(settings: dict[str, Any]) -> None:
    assert resitta.check_method(resitta.create("resitta", **settings))


@pytest.mark.parametrize("name", [n for n in list_methods() if lack(GROUP_NORM, get_method(n).needs) is not None])
def test_methods_that_need_batch_norm_conform_with_a_label_prior(name: str) -> None:
    """The others do so above, with GroupNorm."""
    method = resitta.create(name, **prior_of(name), **QUICK.get(name, {}))
    assert resitta.check_method(method) == tuple(check.__name__ for check in CHECKS)


def load(text: str, folder: Path) -> Any:
    """Run the source of a method as the file of a user."""
    path = folder / "mine.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mine"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replaced(old: str, new: str) -> str:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    return text.replace(old, new)


BUFFER = (
    'self.register_buffer("running_mean", torch.zeros(network.classes, dtype=network.dtype, device=network.device))'
)
PLAIN = "self.running_mean = torch.zeros(network.classes, dtype=network.dtype, device=network.device)"


@pytest.mark.parametrize("period", [1, 3, 1000])
def test_an_rdumb_of_ones_own_conforms(period: int, tmp_path: Path) -> None:
    assert resitta.check_method(load(EXAMPLE.read_text(), tmp_path).MyRDumb(period=period))


@pytest.mark.parametrize("period", [3, 5, 1000])
def test_an_rdumb_whose_running_mean_is_a_plain_tensor_fails_by_name(period: int, tmp_path: Path) -> None:
    mine = load(replaced(BUFFER, PLAIN), tmp_path)
    said = (
        "my-rdumb fails all_state_is_saved: MyRDumbLearner.running_mean is a plain tensor: it changes while the "
        r"learner runs and is not saved; register it with self.register_buffer\('running_mean', \.\.\.\)"
    )
    with pytest.raises(NonConformant, match=said):
        resitta.check_method(mine.MyRDumb(period=period))


def test_it_fails_by_name_as_well_if_there_is_no_mean_at_first(tmp_path: Path) -> None:
    text = replaced(BUFFER, "self.running_mean = None")
    text = text.replace("self.running_mean.zero_()", "self.running_mean = None")
    text = text.replace("self.running_mean[None], predicted)", "self._mean(predicted), predicted)")
    text = text.replace("self.running_mean.copy_(0.9", "self.running_mean = (0.9")
    text = text.replace("if self.running_mean.any() else mean)", "if self.running_mean is not None else mean)")
    text = text.replace(
        "    @torch.no_grad()\n",
        "    def _mean(self, like):\n"
        "        return torch.zeros_like(like[:1]) if self.running_mean is None else self.running_mean[None]\n\n"
        "    @torch.no_grad()\n",
    )
    with pytest.raises(NonConformant, match=r"MyRDumbLearner.running_mean is a plain tensor"):
        resitta.check_method(load(text, tmp_path).MyRDumb())


def test_a_filter_that_lets_nothing_pass_fails(tmp_path: Path) -> None:
    with pytest.raises(NonConformant, match="declared_parameters_move: .* no parameter of MyRDumbLearner moved"):
        resitta.check_method(load(EXAMPLE.read_text(), tmp_path).MyRDumb(margin=1e-12))


def test_torchs_own_optimizer_fails_by_name(tmp_path: Path) -> None:
    text = replaced("        self.optimizer.descend((weights * entropies)[kept].mean())", STEPS)
    text = text.replace("from resitta.training.optimizer import SGD", "from torch.optim import SGD")
    with pytest.raises(
        NonConformant, match=r"MyRDumbLearner.optimizer is torch's own SGD: .* resitta.training.optimizer"
    ):
        resitta.check_method(load(text, tmp_path).MyRDumb())


STEPS = """\
        self.optimizer.zero_grad()
        (weights * entropies)[kept].mean().backward()
        self.optimizer.step()"""


def test_a_model_of_the_users_is_checked_and_left_alone() -> None:
    mine = tiny_network(channels=1, classes=3).train()
    resitta.check_method("resitta", model=mine, shape=(1, 16, 16))
    assert mine.training


def test_images_of_the_users_are_taken_in_their_order() -> None:
    seen: list[float] = []

    class Looking(TentLearner):
        def step(self, images: Tensor) -> Tensor:
            if len(seen) < 100:
                seen.extend(images.mean((1, 2, 3)).tolist())
            return super().step(images)

    images = spread_images(30, (1, 12, 12))
    resitta.check_method(started_by(Looking), images=images)
    assert seen == images.mean((1, 2, 3)).repeat(4)[:100].tolist()


def started_by(learner: type[TentLearner]) -> Method:
    """A method that starts such a learner."""

    @dataclass(frozen=True, kw_only=True)
    class Started(resitta.methods.Tent):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            return learner(self, network)

    return Started()


@pytest.mark.parametrize("images", [torch.zeros(8, 100), torch.zeros(0, 3, 8, 8), [1, 2]])
def test_images_must_be_some(images: Any) -> None:
    with pytest.raises(BadImages):
        resitta.check_method("bn", images=images)


def test_images_may_be_bytes() -> None:
    pool = (spread_images(200).permute(0, 2, 3, 1) * 255).byte().numpy()
    assert resitta.check_method("bn", images=pool, normalized=((0.5,) * 3, (0.25,) * 3))


def test_a_model_that_returns_more_than_logits_is_checked() -> None:
    class Answers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_network()

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"logits": self.net(x)}

    assert resitta.check_method("tent", model=Answers(), output="logits")


def test_a_model_that_insists_on_a_layout_is_no_trouble() -> None:
    class Insists(nn.Module):
        """Takes no other layout than the usual one, which a network finds out when it predicts."""

        def __init__(self) -> None:
            super().__init__()
            self.net = spread_network()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x.view(len(x), -1).view(x.shape))
            return logits

    assert resitta.check_method("resitta", model=Insists())


def test_what_a_prediction_makes_again_need_not_be_saved() -> None:
    class Lazy(TentLearner):
        weights: Tensor | None = None

        def predict(self, images: Tensor) -> Tensor:
            self.weights = torch.ones(len(images))
            return super().predict(images)

        def step(self, images: Tensor) -> Tensor:
            self.predict(images)
            return super().step(images)

    assert resitta.check_method(started_by(Lazy))


@pytest.mark.parametrize("make", [tiny_network, spread_network])
def test_both_networks_can_be_imported_from_the_package(make: Callable[[], nn.Module]) -> None:
    assert make()(torch.rand(2, 3, 16, 16)).shape == (2, 5)
