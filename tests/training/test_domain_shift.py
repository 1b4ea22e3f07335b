"""Another domain is noticed as soon as a window is full of it, and ResiTTA then begins at the source again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resitta import adapt
from resitta.errors import BadSetting, BadState
from resitta.norm.resibn import ResiBN
from resitta.training.domain_shift import WINDOW, DomainShiftDetector, image_statistics


def photos(n: int, seed: int = 0) -> Tensor:
    """Images of many brightnesses and contrasts, with some texture."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 3, 4, 4, generator=generator) * torch.rand(n, 1, 1, 1, generator=generator) * 0.2
    smooth = nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear")
    texture = 0.03 * torch.randn(n, 3, 16, 16, generator=generator)
    return (0.5 + 0.1 * torch.randn(n, 1, 1, 1, generator=generator) + smooth + texture).clamp(0, 1)


def noisy(images: Tensor) -> Tensor:
    return (images + 0.2 * torch.randn(images.shape, generator=torch.Generator().manual_seed(9))).clamp(0, 1)


CHANGES = {
    "noise": noisy,
    "blur": lambda x: nn.functional.avg_pool2d(x, 5, stride=1, padding=2, count_include_pad=False),
    "fog": lambda x: 0.7 + 0.1 * x,
    "darkness": lambda x: 0.3 * x,
    "contrast": lambda x: 0.5 + 0.1 * (x - 0.5),
}


def test_looks_are_brightness_contrast_slope_and_curvature() -> None:
    ramp = torch.linspace(0, 1, 5).expand(1, 3, 5, 5)
    brightness, contrast, slope, curvature = image_statistics(ramp)[0].tolist()
    assert brightness == pytest.approx(0.5, abs=1e-3)
    assert np.exp(contrast) == pytest.approx(np.linspace(0, 1, 5).std(), rel=1e-2)
    assert np.exp(slope) == pytest.approx(0.25, rel=1e-2)
    assert np.exp(curvature) == pytest.approx(1e-3, rel=1e-2), "a ramp has none"


@pytest.mark.parametrize("shape", [(2, 1, 3, 3), (2, 4, 3, 3), (1, 3, 2, 2), (1, 3, 1, 1)])
def test_looks_of_any_images_are_finite_or_told(shape: tuple[int, ...]) -> None:
    assert image_statistics(torch.rand(shape)).shape == (shape[0], 4)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed_once_each_way(change: object) -> None:
    shift, told = DomainShiftDetector(2.0), []
    for step in range(20):
        batch = photos(WINDOW, seed=step)
        told.append(shift(change(batch) if 8 <= step < 14 else batch))  # type: ignore[operator]
    assert {step: begun for step, begun in enumerate(told) if begun is not None} == {8: 0, 14: 0}
    assert shift.begun == 2


def test_without_a_change_nothing_is_noticed() -> None:
    shift = DomainShiftDetector(2.0)
    assert all(shift(photos(WINDOW, seed=step)) is None for step in range(50))


def test_a_slow_film_is_one_domain() -> None:
    first, last = photos(2, seed=3)
    shift = DomainShiftDetector(2.0)
    for step in range(20):
        frames = first.lerp(last, torch.linspace(step, step + 1, WINDOW).view(-1, 1, 1, 1) / 80)
        assert shift(frames) is None
    assert shift(noisy(frames)) == 0


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 150), min_size=1, max_size=12))
def test_how_the_stream_is_cut_does_not_matter(sizes: list[int]) -> None:
    stream = torch.cat([photos(5 * WINDOW), noisy(photos(8 * WINDOW, seed=1))])
    whole, cut = DomainShiftDetector(2.0), DomainShiftDetector(2.0)
    pieces = torch.split(stream[: sum(sizes)], sizes) if sum(sizes) <= len(stream) else [stream]
    seen = torch.cat(list(pieces))
    starts = np.cumsum([0, *map(len, pieces)])
    told = [start + begun for start, piece in zip(starts, pieces, strict=False) if (begun := cut(piece)) is not None]
    assert told[-1:] == [begun for begun in [whole(seen)] if begun is not None]
    np.testing.assert_allclose(cut.mean, whole.mean)
    np.testing.assert_allclose(cut.variance, whole.variance)
    assert (cut.seen, cut.begun) == (whole.seen, whole.begun)
    assert len(cut.waiting) == len(whole.waiting) == len(seen) % WINDOW


def test_images_that_are_not_finite_are_passed_over() -> None:
    shift = DomainShiftDetector(2.0)
    for step in range(6):
        batch = photos(WINDOW, seed=step)
        batch[0] = torch.nan
        assert shift(batch) is None
    assert np.isfinite(shift.mean).all()


def test_resitta_begins_at_the_source_in_a_new_domain(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", reset_on_shift=2.0, eta=0.0)
    for step in range(6):
        adapter(photos(WINDOW, seed=step))
    layers = [layer for layer in adapter.learner.modules() if isinstance(layer, ResiBN)]
    assert not torch.equal(layers[0].statistics()[0], layers[0].source_mean)
    before = adapter.stats
    adapter(noisy(photos(WINDOW - 1, seed=7)))  # the window is not complete
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.occupancy == 64
    adapter(noisy(photos(1, seed=8)))
    assert 1 <= adapter.stats.bank.occupancy < 64, "of the new window only"
    assert adapter.stats.updates == before.updates + 1
    adapter(noisy(photos(WINDOW, seed=8)))
    memory = adapter.learner.memory()
    assert memory is not None
    assert (memory.ages < 2 * WINDOW).all()


def test_the_bank_keeps_the_new_domain_from_its_first_image_on(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, births = adapt(model, "resitta"), list[int]()
    memory = adapter.learner.memory()
    monkeypatch.setattr(memory, "forget_before", births.append)
    for n, begun in ((128, None), (63, None), (1, -63), (64, 0)):
        shift = DomainShiftDetector(bound=2.0)
        monkeypatch.setattr(shift, "forward", lambda images, begun=begun: begun)
        adapter.learner.shift = shift
        adapter(photos(n))
    assert births == [129, 193]


def test_the_statistics_return_in_place(model: nn.Module) -> None:
    learner = adapt(model, "resitta", reset_on_shift=2.0).learner
    layers = [layer for layer in learner.modules() if isinstance(layer, ResiBN)]
    places = [tensor.data_ptr() for layer in layers for tensor in layer.statistics()]
    for layer in layers:
        layer.statistics()[0].add_(1)
    learner.reset_domain(0)  # type: ignore[operator]
    assert places == [tensor.data_ptr() for layer in layers for tensor in layer.statistics()]
    for layer in layers:
        assert torch.equal(layer.statistics()[0], layer.source_mean)


def test_a_saved_stream_goes_on_in_the_middle_of_a_window(model: nn.Module) -> None:
    stream = [*(photos(40, seed=step) for step in range(6)), *(noisy(photos(40, seed=step)) for step in range(6))]
    once = adapt(model, "resitta", reset_on_shift=2.0)
    for batch in stream[:5]:
        once(batch)
    again = adapt(model, "resitta", reset_on_shift=2.0)
    again.load_state_dict(once.state_dict())
    for batch in stream[5:]:
        assert torch.equal(once(batch), again(batch))
    memory = once.learner.memory()
    assert memory is not None
    assert (memory.ages <= 6 * 40).all(), "the domain has changed"


@pytest.mark.parametrize("norm", ["rbn", "adbn"])
def test_other_layers_cannot_begin_anew(model: nn.Module, norm: str) -> None:
    with pytest.raises(BadSetting, match="reset_on_shift needs norm='resibn'"):
        adapt(model, "resitta", reset_on_shift=2.0, norm=norm)


@pytest.mark.parametrize("name", ["waiting", "mean", "variance"])
def test_a_state_of_another_kind_is_refused(name: str) -> None:
    shift = DomainShiftDetector(2.0)
    shift(photos(100))
    before = shift.get_extra_state()
    with pytest.raises(BadState, match="this method has 4"):
        shift.set_extra_state({**before, name: torch.zeros(3, 5)})
    assert shift.get_extra_state().keys() == before.keys()
    assert torch.equal(shift.get_extra_state()[name], before[name])
