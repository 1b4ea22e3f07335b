import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.methods.tide_by_hand import HandTide
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import resitta
from resitta import Adapter, adapt
from resitta.checkpoint.tree import same
from resitta.errors import BadSetting, BadState, UnsuitableModel
from resitta.method import create
from resitta.methods.tide import TideLearner
from resitta.norm.incremental_bn import IncrementalBN, incremental_layers, observing, prior_strength
from resitta.training.label_prior import TemporalPrior

Rejected = Callable[[Tensor], list[bool]]
PLAIN: dict[str, Any] = {"label_prior": "none"}
STILL: dict[str, Any] = {**PLAIN, "lr": 0.0, "mirror": False, "groups": 0}
SHORT: dict[str, Any] = {"capacity": 24, "update_every": 16, "mature_age": 20, "forget_age": 60}


def scene(n: int, seed: int, channels: int = 3) -> Tensor:
    """Cloudy, grainy images with tints."""
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.rand((n, channels, 4, 4), generator=generator)
    tint = torch.rand((n, channels, 1, 1), generator=generator) - 0.5
    grain = torch.rand((n, channels, 10, 10), generator=generator)
    smooth = nn.functional.interpolate(clouds, (10, 10), mode="bilinear")
    return (0.25 + 0.3 * smooth + 0.4 * tint + 0.08 * grain).clamp(0, 1).double()


def fog(images: Tensor) -> Tensor:
    return 0.5 + 0.4 * images


def foggier(images: Tensor) -> Tensor:
    return 0.7 + 0.2 * images


def dark(images: Tensor) -> Tensor:
    return 0.5 * images


def slanted(images: Tensor) -> Tensor:
    """Images that are brighter on one side, which a mirror turns around."""
    side = torch.arange(len(images)).remainder(2).mul(2).sub(1).view(-1, 1, 1, 1)
    return (images + 0.35 * side * torch.linspace(-1, 1, 10)).clamp(0, 1)


def network(classes: int = 5, channels: int = 3, seed: int = 0) -> nn.Sequential:
    """Three BatchNorm layers that know scenes; certain of many of them, and of different classes."""
    torch.manual_seed(seed)
    first = nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    second = nn.Conv2d(8, 12, 3, stride=2, bias=False), nn.BatchNorm2d(12), nn.ReLU()
    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(12)
    return fitted(nn.Sequential(*first, *second, *pool, nn.Linear(12, classes)), scene(256, 9, channels))


@torch.no_grad()
def fitted(model: nn.Sequential, images: Tensor) -> nn.Sequential:
    """Give a network the statistics of images, and a head whose outputs vary between them."""
    for layer in model.double().train():
        if isinstance(layer, _BatchNorm):
            layer.momentum = 1.0
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
    model(images)
    *body, head = model.eval()
    assert isinstance(head, nn.Linear)
    head.weight.mul_(3)
    head.bias.copy_(-head.weight @ nn.Sequential(*body)(images).mean(0))
    return model


@pytest.fixture
def model() -> nn.Sequential:
    return network()


def domains() -> Tensor:
    """Domains that are left, met again, and like the one before."""
    parts = fog(scene(130, 1)), dark(scene(150, 2)), fog(scene(150, 4)), foggier(scene(130, 5)), dark(scene(60, 6))
    return torch.cat(parts)


def side_by_side(n: int) -> Tensor:
    """Fog, darkness and noise in no order."""
    generator = torch.Generator().manual_seed(0)
    images = scene(n, 1)
    noisy = (images + 0.2 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
    kinds = torch.randint(3, (n, 1, 1, 1), generator=generator)
    return torch.where(kinds == 0, fog(images), torch.where(kinds == 1, dark(images), noisy))


def learner_of(adapter: Adapter) -> TideLearner:
    assert isinstance(adapter.learner, TideLearner)
    return adapter.learner


def layers_of(adapter: Adapter) -> list[IncrementalBN]:
    return incremental_layers(learner_of(adapter).network)


def statistics(adapter: Adapter) -> Tensor:
    """Means and variances of all layers."""
    return torch.cat([values for layer in layers_of(adapter) for values in layer.statistics()])


def compare(
    model: nn.Sequential, images: Tensor, size: int, classes: int = 5, rejected: Rejected | None = None, **settings: Any
) -> HandTide:
    """Run the adapter and the literal method; all they return, all statistics and all parameters must agree."""
    hand, adapter = HandTide(model, classes, **settings), adapt(model, "tide", **PLAIN, **settings, classes=classes)
    learner, trains = learner_of(adapter), adapter.method.trains == "affine"
    if rejected is not None:
        hand.rejected = rejected
        learner.bank.screen = lambda x, logits: logits.where(~torch.tensor(rejected(x))[:, None], torch.nan)
    near = 1e-6 if trains else 1e-9  # Adam magnifies rounding
    for batch in torch.split(images, size):
        torch.testing.assert_close(adapter(batch), hand(batch), rtol=near, atol=near)
        mine = torch.cat([values for layer in hand.layers for values in layer.present])
        torch.testing.assert_close(statistics(adapter), mine, rtol=near, atol=near)
    for parameter, literal in zip(adapter.parameters(), hand.trained if trains else (), strict=True):
        torch.testing.assert_close(parameter, literal, rtol=near, atol=near)
    assert learner.changes.found == len(hand.changes.found)
    assert learner.past.recalled == hand.counted["recalled"]
    assert int((learner.past.met > 0).sum()) == len(hand.remembered)
    assert (learner.seen, learner.mixed.since) == (hand.seen, hand.mixed.since)
    assert (learner.bank.size, learner.bank.clock) == (hand.bank.size, hand.clock)
    assert learner.mirrored.evidence.tolist() == pytest.approx(hand.evidence, rel=1e-4)
    return hand


@pytest.mark.parametrize("size", [16, 64, 200])
def test_domains_by_hand(model: nn.Sequential, size: int) -> None:
    hand = compare(model, domains(), size)
    assert [start for start, *_ in hand.changes.found] == (
        [130, 280, 428, 432, 560] if size == 16 else [130, 280, 430, 560]
    )
    assert hand.counted["recalled"] > 0
    if size < 200:
        events = ("learned", "taken up", "forgotten", "averaged", "new", "skipped")
        assert all(hand.counted[event] > 0 for event in events)


@pytest.mark.parametrize("size", [1, 7])
def test_small_batches_by_hand(model: nn.Sequential, size: int) -> None:
    hand = compare(model, torch.cat((fog(scene(110, 1)), dark(scene(90, 2)))), size)
    assert hand.counted["changes"] == 1
    assert hand.counted["averaged"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"mirror": False},
        {"mirror": False, "diversity": 0.0},
        {"lr": 0.01, "anchor": 0.1, **SHORT},
        {"lr": 0.01, "anchor": 0.0},
        {"lr": 0.0},
        {"change_bound": None},
        {"change_bound": 1.5, "recall_bound": 3.0, "recalled_strength": 20.0},
        {"recall_bound": 0.0},
        {"domains": 1, "groups": 0},
        {"strength": 10.0, "quota": 1.5, "ceiling": 40.0},
    ],
    ids=str,
)
def test_settings_by_hand(model: nn.Sequential, settings: dict[str, Any]) -> None:
    hand = compare(model, domains(), 50, **settings)
    assert (hand.counted["changes"] > 0) == ("change_bound" not in settings or settings["change_bound"] is not None)
    assert (hand.counted["learned"] > 0) == (settings.get("lr") != 0)


@pytest.mark.parametrize("classes", [2, 3, 30])
def test_k_is_the_number_of_classes(classes: int) -> None:
    """Also where there are fewer classes than groups of images."""
    compare(network(classes), fog(scene(250, 1)), 50, classes)


def test_domains_side_by_side_by_hand(model: nn.Sequential) -> None:
    hand = compare(
        model, torch.cat((fog(scene(128, 3)), dark(scene(128, 4)), side_by_side(704), 0.97 + 0.01 * scene(64, 5))), 64
    )

    assert hand.counted["regrouped"] == 1
    assert hand.counted["by group"] > 2
    assert hand.counted["learned"] > 0


def test_mirrored_images_that_are_predicted_otherwise_by_hand(model: nn.Sequential) -> None:
    hand = compare(fitted(model, slanted(scene(256, 9))), slanted(scene(300, 1)), 50)
    assert hand.counted["plain"] > 100
    assert hand.counted["mirrored"] > 0


def are_bright(images: Tensor) -> list[bool]:
    shades: list[float] = images.mean((1, 2, 3)).tolist()
    return [shade > 0.69 for shade in shades]


def test_rejected_samples_are_kept_out_by_hand(model: nn.Sequential) -> None:
    images = torch.cat((fog(scene(150, 1)), dark(scene(100, 2))))
    hand = compare(model, images, 50, rejected=are_bright)
    assert 20 < 250 - hand.clock == sum(are_bright(images)) < 130
    assert hand.counted["averaged"] > 0


# --- what it promises -------------------------------------------------------------------------------------------------


def test_statistics_do_not_depend_on_the_batch_size_if_labels_are_the_same() -> None:
    """With one layer: in deeper ones, activations depend on the statistics before."""
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    model, images = fitted(nn.Sequential(*parts), scene(64, 9)), fog(scene(192, 1))
    logits = torch.randn(192, 5).double()
    found = []
    for size in (1, 16, 64, 192):
        adapter = adapt(model, "tide", **STILL)
        for pair in zip(torch.split(images, size), torch.split(logits, size), strict=True):
            adapter.learn_from(*pair)
        found.append(statistics(adapter))
        assert learner_of(adapter).counts.counts.tolist() == logits.argmax(1).bincount().tolist()
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-9)


def test_a_domain_begins_as_if_nothing_had_been_before(model: nn.Sequential) -> None:
    """If its first image begins a batch, and the source fits it better than the domain before."""
    adapter, fresh = adapt(model, "tide", **STILL), adapt(model, "tide", **STILL)
    for batch in torch.split(fog(scene(192, 1)), 64):
        adapter(batch)
    assert learner_of(adapter).bank.size == 64
    for batch in torch.split(dark(scene(128, 2)), 64):
        with torch.no_grad():
            logits = model(batch)  # those of the domain before would be others
        for each in (adapter, fresh):
            each.learn_from(batch, logits)
        torch.testing.assert_close(statistics(adapter), statistics(fresh))
        assert torch.equal(learner_of(adapter).counts.counts, learner_of(fresh).counts.counts)
    assert learner_of(adapter).changes.found == 1
    assert torch.equal(learner_of(adapter).bank.samples, learner_of(fresh).bank.samples)


@pytest.mark.parametrize("size", [64, 256])
def test_a_domain_that_returns_is_recognised_in_batches_of_any_size(model: nn.Sequential, size: int) -> None:
    adapter = adapt(model, "tide", **STILL)
    images = torch.cat((fog(scene(256, 1)), dark(scene(256, 2)), fog(scene(512, 3))))
    for batch in torch.split(images, size):
        adapter(batch)
    assert learner_of(adapter).past.recalled == 1


@pytest.mark.parametrize(("images", "recalled"), [(32, 0), (80, 1), (208, 0)])
def test_a_domain_is_recognised_early_or_not_at_all(model: nn.Sequential, images: int, recalled: int) -> None:
    adapter = adapt(model, "tide", **STILL)
    learner = learner_of(adapter)
    for batch in torch.split(fog(scene(images, 1)), 16):
        adapter(batch)
    learner.past.keep(learner.changes.mean)
    adapter(fog(scene(8, 2)))
    assert learner.past.recalled == recalled
    assert learner.counts.strength == (256 if recalled else 64)


def test_normalised_images_are_looked_at_as_they_are(model: nn.Sequential) -> None:
    class Restored(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.2 + 0.5

    plain = adapt(model, "tide", **STILL)
    normalised = adapt(nn.Sequential(Restored(), model), "tide", **STILL, normalized=([0.5] * 3, [0.2] * 3))
    for batch in torch.split(domains()[:250], 50):
        expected = plain(batch)
        torch.testing.assert_close(normalised((batch - 0.5) / 0.2), expected, rtol=1e-5, atol=1e-5)
    assert learner_of(plain).changes.found == learner_of(normalised).changes.found == 1
    mean = learner_of(plain).changes.mean
    assert mean.any()
    assert learner_of(normalised).changes.mean.tolist() == pytest.approx(mean.tolist(), abs=1e-4)


def test_images_of_the_domain_before_keep_their_prediction(model: nn.Sequential) -> None:
    adapter = adapt(model, "tide", **STILL)
    for batch in torch.split(fog(scene(128, 1)), 64):
        adapter(batch)
    images = torch.cat((fog(scene(24, 3)), dark(scene(40, 4))))
    other = copy.deepcopy(adapter)
    with other.paused():
        plain = other(images)
    newer = learner_of(other).learn_from(images, plain)
    assert newer is not None
    assert newer.isnan().all(dim=1).tolist() == [True] * 24 + [False] * 40
    assert torch.equal(adapter(images), newer.where(newer.isfinite(), plain))
    assert not torch.equal(newer[24:], plain[24:])


def test_the_label_prior_only_corrects_what_is_returned(model: nn.Sequential) -> None:
    plain, corrected, prior = adapt(model, "tide", **PLAIN), adapt(model, "tide"), TemporalPrior()
    with torch.no_grad():
        order = model(scene(300, 1)).argmax(1).argsort(stable=True)
    for batch in torch.split(scene(300, 1)[order], 50):
        assert torch.equal(corrected(batch), prior(plain(batch)))
    assert prior.on
    assert same(corrected.learner.state_dict(), plain.learner.state_dict())


def test_a_paused_adapter_changes_nothing_and_predicts_what_its_export_predicts(model: nn.Sequential) -> None:
    adapter = adapt(model, "tide")
    for batch in torch.split(domains()[:300], 50):
        adapter(batch)
    before, images = adapter.state_dict(), scene(20, 8)
    with adapter.paused():
        expected = learner_of(adapter).predict(images)
        for _ in range(3):
            adapter(images)
    assert same(adapter.state_dict(), before)
    torch.testing.assert_close(adapter.export()(images), expected)
    with torch.no_grad():
        assert not torch.allclose(expected, model(images), atol=1e-3)


@pytest.mark.parametrize("after", [100, 330, 600])
def test_saved_and_copied_adapters_continue_bit_for_bit(model: nn.Sequential, after: int, tmp_path: Path) -> None:
    """In the first domain, with remembered domains, in the middle of a block; in the last, with much remembered."""
    adapter, images = adapt(model, "tide", **SHORT), domains()
    for batch in torch.split(images[:after], 37):
        adapter(batch)
    adapter.save(tmp_path / "state")
    others = [resitta.load(model, tmp_path / "state"), copy.deepcopy(adapter), adapt(model, "tide", **SHORT)]
    others[2].load_state_dict(adapter.state_dict())
    for batch in torch.split(torch.cat((images[after:], fog(scene(80, 11)))), 37):
        expected = adapter(batch)
        assert all(torch.equal(other(batch), expected) for other in others)
    assert all(same(other.state_dict(), adapter.state_dict()) for other in others)


def test_groups_of_images_are_saved(model: nn.Sequential) -> None:
    adapter = adapt(model, "tide", change_bound=None)
    for batch in torch.split(side_by_side(576), 64):
        adapter(batch)
    assert learner_of(adapter).mixed.on
    other = adapt(model, "tide", change_bound=None)
    other.load_state_dict(adapter.state_dict())
    images = torch.cat((fog(scene(16, 3)), dark(scene(16, 4))))
    assert torch.equal(other(images), adapter(images))


def test_a_reset_forgets_everything(model: nn.Sequential) -> None:
    adapter, images = adapt(model, "tide"), fog(scene(128, 1))
    first = adapter(images)
    for batch in torch.split(domains(), 50):
        adapter(batch)
    adapter.reset()
    assert torch.equal(adapter(images), first)


def test_states_of_other_settings_are_refused(model: nn.Sequential) -> None:
    state = adapt(model, "tide", domains=16).state_dict()
    other = adapt(model, "tide", domains=5)
    before = other.state_dict()
    with pytest.raises(BadState):
        other.load_state_dict(state)
    assert same(other.state_dict(), before)


@pytest.mark.parametrize(("name", "value"), [("groups", 129), ("groups", -1), ("domains", 0), ("capacity", 1)])
def test_settings_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(BadSetting, match=name):
        create("tide", **dict[str, Any]({name: value}))


def test_one_domain_can_be_remembered(model: nn.Sequential) -> None:
    assert len(learner_of(adapt(model, "tide", domains=1)).past) == 1


# --- models and streams of many kinds ---------------------------------------------------------------------------------


def test_with_more_than_128_classes_some_share_a_row() -> None:
    model = network(300)
    with torch.no_grad():
        model.get_parameter("9.weight").mul_(4)
    adapter, images = adapt(model, "tide", **STILL), scene(200, 1)
    with torch.no_grad():
        labels = model(images).argmax(1)
    adapter(images)
    assert labels.max() >= 128
    assert learner_of(adapter).counts.counts.tolist() == (labels % 128).bincount(minlength=128).tolist()


@pytest.mark.parametrize("size", [1, 40])
def test_other_networks_and_single_images(size: int) -> None:
    torch.manual_seed(0)
    images = scene(40, 1)
    hidden = nn.Flatten(), nn.Linear(300, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    tiny = nn.Conv2d(3, 6, 10), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4)  # feature maps of 1×1
    for parts in (hidden, tiny):
        hand = compare(fitted(nn.Sequential(*parts), scene(64, 9)), images, size, 4, **SHORT)
        assert hand.counted["learned"] > 0
    compare(network(channels=1), scene(40, 1, channels=1), size, **SHORT)


def test_a_half_precision_model_learns_in_float32() -> None:
    model = network().bfloat16()
    adapter = adapt(model, "tide", **SHORT)
    for batch in torch.split(domains()[:200].bfloat16(), 20):
        logits = adapter(batch)
        assert logits.dtype == torch.bfloat16
        assert logits.isfinite().all()
    learner, layer = learner_of(adapter), layers_of(adapter)[0]
    for tensor in (layer.sums, layer.prior, layer.domains, layer.statistics()[0], learner.counts.strength):
        assert tensor.dtype == torch.float32
    assert {parameter.dtype for parameter in adapter.parameters()} == {torch.float32}
    assert next(adapter.export().parameters()).dtype == torch.bfloat16


def test_a_converted_adapter_goes_on_counting() -> None:
    """In bfloat16, 256 + 1 would be 256."""
    adapter, images = adapt(network().float(), "tide", **STILL), scene(300, 1)
    for batch in torch.split(images.float(), 50):
        adapter(batch)
    before = statistics(adapter)
    adapter.bfloat16()
    assert torch.equal(statistics(adapter), before)
    assert learner_of(adapter).counts.counts.sum() == layers_of(adapter)[0].counts.sum() == 300
    for image in images[:40]:
        adapter(image[None].bfloat16())
    assert learner_of(adapter).counts.counts.sum() == layers_of(adapter)[0].counts.sum() == 340
    torch.testing.assert_close(statistics(adapter), before, rtol=0, atol=0.1)


class Contrast(nn.Module):
    """Divides by the contrast of each image, which black images do not have."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)


def test_an_image_without_a_prediction_is_left_out() -> None:
    adapter, images = adapt(nn.Sequential(Contrast(), network()), "tide"), scene(64, 1)
    images[3] = 0
    assert adapter(images).isnan().any(dim=1).nonzero().tolist() == [[3]]
    assert learner_of(adapter).counts.counts.sum() == 63
    assert learner_of(adapter).bank.clock == 64
    assert statistics(adapter).isfinite().all()
    assert adapter(scene(64, 2)).isfinite().all()


# --- with the rest of the library -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"mirror": False}, {"groups": 0}, {"lr": 0.0}, PLAIN], ids=str)
def test_its_variants_conform(settings: dict[str, Any]) -> None:
    assert "export_predicts_the_same" in resitta.check_method(create("tide", **settings))


@pytest.mark.parametrize("size", [7, 64])
def test_in_the_background_it_learns_the_same(model: nn.Sequential, size: int) -> None:
    beside, plain = adapt(model, "tide", background=True), adapt(model, "tide")
    for batch in torch.split(domains()[:300], size):
        beside(batch)
        beside.sync()
        plain(batch)
    assert same(beside.learner.state_dict(), plain.learner.state_dict())


def test_a_guard_keeps_noise_out_and_a_burst_of_it_begins_no_domain(model: nn.Sequential) -> None:
    adapter = adapt(model, "tide", guard=True)
    for batch in torch.split(scene(320, 1), 32):
        adapter(batch)
    noise = (torch.rand(64, 3, 10, 10, generator=torch.Generator().manual_seed(0)) > 0.5).double()
    adapter(torch.cat((scene(32, 2), noise[:32])))
    adapter(noise)
    assert learner_of(adapter).changes.found == 0
    assert 320 < learner_of(adapter).counts.counts.sum() <= 320 + 32
    unguarded = adapt(model, "tide")
    for batch in torch.split(torch.cat((scene(320, 1), noise)), 32):
        unguarded(batch)
    assert learner_of(unguarded).changes.found == 1


def test_autosave_recovers_it(model: nn.Sequential, tmp_path: Path) -> None:
    adapter, images = adapt(model, "tide"), domains()
    saving = resitta.Autosave(tmp_path, updates=1)
    adapter.add_callback(saving)
    for batch in torch.split(images[:300], 50):
        adapter(batch)
    saving.close()
    recovered = resitta.recover(model, tmp_path)
    assert recovered.samples == 300
    assert torch.equal(recovered(images[300:350]), adapter(images[300:350]))


# --- what it is good for ----------------------------------------------------------------------------------------------


def gratings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Stripes in one of four directions, at any place, with grain; and their directions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (n,), generator=generator)
    angle = (labels * torch.pi / 4).view(-1, 1, 1)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    phase = 6 * torch.rand((n, 1, 1), generator=generator)
    stripes = (1.3 * (x * angle.cos() + y * angle.sin()) + phase).sin()
    grain = 0.6 * torch.randn((n, 3, 12, 12), generator=generator)
    return (0.5 + 0.15 * (stripes[:, None] + grain)).clamp(0, 1), labels


def trained() -> nn.Module:
    """A network that tells directions from pixels as they are, not from their contrast."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.ReLU()
    second = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
    model = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for seed in range(60):
        images, labels = gratings(64, seed)
        adam.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return model.eval()


def faded(images: Tensor) -> Tensor:
    return 0.3 + 0.4 * images


def dusk(images: Tensor) -> Tensor:
    return 0.65 * images


def bright(images: Tensor) -> Tensor:
    return (images + 0.25).clamp(0, 1)


def test_it_recovers_from_a_shift_within_48_images_and_knows_the_domain_when_it_returns() -> None:
    model = trained()
    for broken in (faded, dusk):
        adapter, recalled = adapt(model, "tide", **PLAIN), []
        for seed, look in enumerate((broken, bright, broken)):
            images, labels = gratings(192, 100 + seed)
            with torch.no_grad():
                wrong = (model(look(images)).argmax(1) != labels).float().mean()
            assert wrong > 0.4 if look is broken else wrong < 0.02
            found = torch.cat([adapter(batch) for batch in torch.split(look(images), 16)]).argmax(1)
            assert (found[48:] != labels[48:]).float().mean() < 0.02
            recalled.append(learner_of(adapter).past.recalled)
        assert recalled == [0, 0, 1]
        assert learner_of(adapter).changes.found == 2


def test_it_recovers_where_a_shift_leaves_one_class() -> None:
    """Predictions of a single class say little about statistics, but images far from the source's do."""
    model = trained()
    images, labels = gratings(512, 7)
    source = model(0.5 * images).argmax(1)
    assert source.bincount().max() > 0.9 * len(source)
    adapter, firm = (adapt(model, "tide", noise=noise, **PLAIN) for noise in (1.6, 1e9))
    wrong = []
    for each in (adapter, firm):
        predicted = torch.cat([each(batch) for batch in torch.split(0.5 * images, 32)]).argmax(1)
        wrong.append((predicted != labels)[256:].double().mean().item())
    assert wrong[0] < 0.15
    assert wrong[1] > 0.5


def test_statistics_follow_a_slow_change() -> None:
    model = trained()
    adapter = adapt(model, "tide", change_bound=None, **PLAIN)
    images, labels = gratings(6400, 8)
    light = torch.linspace(1, 0.35, len(images)).view(-1, 1, 1, 1)
    predicted = torch.cat([adapter(batch) for batch in torch.split(light * images, 64)]).argmax(1)
    assert (predicted != labels)[-640:].double().mean() < 0.15
    assert (model(light * images).argmax(1) != labels)[-640:].double().mean() > 0.5


# --- odd networks -----------------------------------------------------------------------------------------------------


def test_a_masked_class_is_no_reason_to_learn_nothing(model: nn.Sequential) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return torch.cat((y[:, :4], torch.full_like(y[:, 4:], -torch.inf)), dim=1)

    adapter = adapt(Masked().eval(), "tide")
    for batch in torch.split(scene(128, 1), 32):
        assert not adapter(batch).isnan().any()
    assert learner_of(adapter).counts.counts.sum() == 128
    assert learner_of(adapter).changes.seen > 0


def test_channels_that_are_constant_are_no_shift() -> None:
    """A pruned channel has a variance of zero but for rounding, which its layer's epsilon hides."""
    layer = nn.BatchNorm2d(4).eval()
    assert layer.running_mean is not None
    assert layer.running_var is not None
    with torch.no_grad():
        layer.running_mean.copy_(torch.tensor([0.0, 0.0, 5.1, 20.3]))
        layer.running_var.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    images = torch.randn(64, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, 2], images[:, 3] = 5.1, 20.3
    network = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    adapter = adapt(network, "tide", classes=3, normalized=([0.5] * 4, [1.0] * 4), non_finite="raise", **STILL)
    wrapped = layers_of(adapter)[0]
    counts = learner_of(adapter).counts
    with observing(wrapped, counts.add(torch.arange(64) % 3, torch.ones(64, dtype=torch.bool))):
        out = wrapped(images)
    mean, variance = wrapped.statistics()
    torch.testing.assert_close(mean[2:], layer.running_mean[2:], rtol=1e-6, atol=1e-6)
    assert variance[2:].max() < 1e-6
    assert out[:, 2:].abs().max() < 0.01
    weights = counts.counts / wrapped.counts.clamp(min=1)[: len(wrapped.sums)]
    sums = torch.einsum("r,rmc->mc", weights, wrapped.sums)
    prior = wrapped.prior - torch.stack((wrapped.source[0], torch.zeros(4)))
    found = prior_strength(sums, counts.counts.sum(), prior, torch.tensor(64.0), noise=1.6, eps=layer.eps)
    assert found == 64


def test_a_network_that_makes_several_samples_of_an_image_is_refused_in_words(model: nn.Sequential) -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            both: Tensor = self.inner(torch.cat((x, x.flip(-1))))
            return both.view(2, len(x), -1).mean(0)

    adapter = adapt(Doubled().eval(), "tide")
    with pytest.raises(UnsuitableModel, match="found 64 samples of 32 images in a BatchNorm layer; use method='resit"):
        adapter(scene(32, 1))


def test_feedback_would_correct_twice() -> None:
    with pytest.raises(BadSetting, match="feedback=True would apply the label prior twice; leave it out"):
        create("tide", feedback=True)


def test_the_number_of_changes_is_saved_and_rolled_back(model: nn.Sequential, tmp_path: Path) -> None:
    adapter = adapt(model, "tide", **STILL)
    for batch in torch.split(domains()[:200], 50):
        adapter(batch)
    assert learner_of(adapter).domain_changes == 1
    adapter.save(tmp_path / "state")
    other = resitta.load(model, tmp_path / "state")
    events: list[Any] = []
    other.listen(events.append)
    other(domains()[200:250])
    assert learner_of(other).domain_changes == 1
    assert not [event for event in events if isinstance(event, resitta.events.DomainChanged)]
