from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import resitta
from resitta.errors import UnsuitableModel
from resitta.method import Needs
from resitta.models import VisionTransformer
from resitta.norm.requirements import lack

HEAD = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)


def network(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), *HEAD)


class TokenNorm(nn.Module):
    """A layer norm, or another one over the last axis, of the channels of each pixel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal: torch.Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
        return normal


KINDS: dict[str, nn.Module] = {
    "LayerNorm": TokenNorm(nn.LayerNorm(4)),
    "RMSNorm": TokenNorm(nn.RMSNorm(4)),
    "GroupNorm": nn.GroupNorm(2, 4),
    "InstanceNorm": nn.InstanceNorm2d(4, affine=True),
}
NEED_BATCH_NORM = ["bn", "note", "petta", "resitta", "rotta", "tide", "tribe", "unmix"]


ANY = {"cofa", "cotta", "lame", "neo", "source", "t3a"}
ANY_NORM = ANY | {"cmf", "deyo", "eata", "eta", "pl", "rdumb", "roid", "sar", "tent"}


def sentence(method: str, *own: str, model: str = "Sequential") -> str:
    needed = f"{method} needs BatchNorm layers, and {model} has none"
    return f"{needed}; use method={either(ANY_NORM | set(own))}, which work on this model"


def either(names: set[str]) -> str:
    *first, last = map(repr, sorted(names))
    return f"{', '.join(first)} or {last}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["cotta", "lame", "pl", "source", "tent"])
def test_models_without_batchnorm_are_taken(kind: str, method: str) -> None:
    chosen = resitta.methods.CoTTA(views=2) if method == "cotta" else method
    adapter = resitta.adapt(network(KINDS[kind]).eval(), chosen)
    before = {name: p.detach().clone() for name, p in adapter.named_parameters()}
    for _ in range(2):
        assert adapter(torch.rand(8, 3, 8, 8)).isfinite().all()
    moved = [name for name, p in adapter.named_parameters() if not torch.equal(p, before[name])]
    if method in ("tent", "pl"):
        assert [name.rpartition(".")[2] for name in moved] == ["weight", "bias"][: len(before)]
    assert bool(moved) == (method in ("cotta", "pl", "tent"))


@pytest.mark.parametrize("method", NEED_BATCH_NORM)
@pytest.mark.parametrize("kind", KINDS)
def test_the_refusal_names_the_methods_that_work(method: str, kind: str) -> None:
    with pytest.raises(UnsuitableModel) as refused:
        resitta.adapt(network(KINDS[kind]), method)
    assert str(refused.value) == sentence(method)


@pytest.mark.parametrize(("given", "method"), [((), "tide"), (("resitta",), "resitta")])
def test_a_transformer_is_refused_by_name(given: tuple[str, ...], method: str) -> None:
    vit = VisionTransformer(image_size=8, width=6, depth=1)
    with pytest.raises(UnsuitableModel) as refused:
        resitta.adapt(vit, *given)
    assert str(refused.value) == sentence(method, model="VisionTransformer")


def test_methods_of_ones_own_are_named_too() -> None:
    def registered(name: str, what: Needs) -> None:
        @resitta.register(name)
        @dataclass(frozen=True, kw_only=True)
        class Own(resitta.methods.Tent):
            needs: ClassVar[Needs] = what

    registered("any-norm", "norm")
    registered("moments", "running_statistics")
    with pytest.raises(UnsuitableModel) as refused:
        resitta.adapt(network(nn.GroupNorm(2, 4)), "bn")
    assert str(refused.value) == sentence("bn", "any-norm")


def test_without_any_norm_layer_tent_is_refused() -> None:
    with pytest.raises(UnsuitableModel) as refused:
        resitta.adapt(nn.Sequential(*HEAD), "tent")
    needed = "tent needs normalisation layers with affine parameters, and Sequential has none"
    assert str(refused.value) == f"{needed}; use method={either(ANY)}, which work on this model"


@pytest.mark.parametrize(
    ("layer", "wanting"),
    [
        (nn.BatchNorm2d(4), []),
        (nn.BatchNorm2d(4, affine=False), []),  # its statistics follow the batch
        (nn.BatchNorm2d(4, track_running_stats=False), ["running_statistics"]),
        (nn.GroupNorm(2, 4), ["batch_norm", "running_statistics"]),
        (nn.GroupNorm(2, 4, affine=False), ["norm", "batch_norm", "running_statistics"]),
        (nn.Linear(4, 4), ["norm", "batch_norm", "running_statistics"]),
    ],
)
def test_what_a_layer_is_good_for(layer: nn.Module, wanting: list[Needs]) -> None:
    kinds: list[Needs] = ["nothing", "norm", "batch_norm", "running_statistics"]
    assert [needs for needs in kinds if lack(layer, needs) is not None] == wanting


@pytest.mark.parametrize("method", ["tent", "pl"])
def test_weights_that_are_constants_cannot_be_trained(method: str) -> None:
    class OwnNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(4))

    with pytest.raises(UnsuitableModel, match=f"{method} needs normalisation layers with affine parameters, and Seq"):
        resitta.adapt(network(OwnNorm()), method)
