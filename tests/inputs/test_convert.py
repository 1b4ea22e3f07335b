"""Every form of images gives the logits of the tensor path, and every shape a batch or an error of the library."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor, nn
from torch.nn import functional as F

import resitta
from resitta import ResittaError, adapt
from resitta.conformance import tiny_network
from resitta.errors import BadImages, BadSetting

BYTES = torch.randint(0, 256, (6, 3, 14, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
BATCH = BYTES.float() / 255
LAST = BYTES.permute(0, 2, 3, 1).contiguous()
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def pictures() -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    return [image.fromarray(array) for array in LAST.numpy()]


FORMS: dict[str, Callable[[], Any]] = {
    "uint8 NCHW": lambda: BYTES,
    "uint8 NHWC": lambda: LAST,
    "uint8 NHWC, a view": lambda: BYTES.permute(0, 2, 3, 1),
    "inference tensor": torch.inference_mode()(LAST.clone),
    "array NCHW": BYTES.numpy,
    "array NHWC": LAST.numpy,
    "array of floats NCHW": BATCH.numpy,
    "array of floats NHWC": lambda: BATCH.permute(0, 2, 3, 1).numpy(),
    "list of uint8 tensors HWC": lambda: list(LAST),
    "tuple of float tensors CHW": lambda: tuple(BATCH),
    "list of arrays": lambda: list(LAST.numpy()),
    "PIL images": pictures,
    "plain floats": lambda: BATCH,
}
SINGLE: dict[str, Callable[[], Any]] = {
    "array HWC": LAST[0].numpy,
    "array CHW": BYTES[0].numpy,
    "uint8 tensor CHW": lambda: BYTES[0],
    "float tensor CHW": lambda: BATCH[0],
    "PIL image": lambda: pictures()[0],
    "list of one": lambda: [LAST[0].numpy()],
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("form", [*FORMS, *SINGLE])
def test_every_form_gives_the_same_logits_and_learns_the_same(model: nn.Module, form: str, background: bool) -> None:
    given, batch = (FORMS[form], BATCH) if form in FORMS else (SINGLE[form], BATCH[:1])
    one, other = (adapt(model, "resitta", capacity=8, update_every=6, background=background) for _ in range(2))
    for _ in range(2):
        assert torch.equal(one(given()), other(batch))
        one.sync()
        other.sync()
    one.learn_from(given(), one.source(batch))
    other.learn_from(batch, other.source(batch))
    one.sync()
    other.sync()
    assert torch.equal(one(batch), other(batch))
    assert one.stats.samples == other.stats.samples == 4 * len(batch)
    assert torch.equal(resitta.images(given()), batch)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_on_normalised_images_gets_bytes_normalised_and_floats_as_they_are(model: nn.Module, form: str) -> None:
    adapter = adapt(model, "resitta", normalized=IMAGENET)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in IMAGENET)
    normal = (BATCH - mean) / std
    floats = {
        "array of floats NCHW": normal.numpy(),
        "array of floats NHWC": normal.permute(0, 2, 3, 1).numpy(),
        "tuple of float tensors CHW": tuple(normal),
        "plain floats": normal,
    }
    images = floats.get(form) if form in floats else FORMS[form]()
    assert torch.equal(resitta.images(images, to=adapter), normal)
    with adapter.paused():
        assert torch.equal(adapter(images), adapter(normal))


def test_grey_images_suit_models_of_one_channel() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapter, grey = adapt(model, "bn"), BYTES[0, 0]
    expected = adapter(grey[None, None].float() / 255)
    for form in (grey, grey.numpy(), [grey], grey[..., None], grey[None].numpy()):
        assert torch.equal(adapter(form), expected)
    with pytest.raises(BadImages, match="the model refused images of shape"):
        adapter(BYTES)


def test_source_data_come_in_any_form(model: nn.Module) -> None:
    tensors: Any = adapt(model, "eata", source=[(BATCH, torch.zeros(6))]).method
    for form in (BYTES.numpy(), (LAST, torch.zeros(6)), pictures(), list(LAST.numpy())):
        method: Any = adapt(model, "eata", source=[form]).method
        assert method.source == tensors.source


def test_a_float_batch_is_returned_as_it_is() -> None:
    assert resitta.images(BATCH) is BATCH
    assert resitta.images(BATCH.half()).dtype == torch.float16
    assert resitta.images(BATCH.permute(0, 2, 3, 1).double().numpy()).dtype == torch.float64


def test_bgr_is_turned() -> None:
    assert torch.equal(resitta.images(LAST.flip(-1).numpy(), bgr=True), BATCH)
    assert torch.equal(resitta.images(BATCH.flip(1), bgr=True), BATCH)
    assert torch.equal(resitta.images(BYTES[:, :1], bgr=True), BATCH[:, :1])
    four = np.full((5, 5, 4), (30, 20, 10, 255), np.uint8)
    assert (resitta.images(four, bgr=True)[0, :, 0, 0] * 255).tolist() == [10, 20, 30, 255]
    with pytest.raises(BadImages, match="bgr=True needs images of 1, 3 or 4 channels, found 2"):
        resitta.images(BATCH[:, :2], bgr=True)


@pytest.mark.parametrize("size", [7, (5, 10), (28, 20), (14, 10), (1, 1)])
def test_stretching_is_the_antialiased_interpolation_of_the_floats(size: Any) -> None:
    target = (size, size) if isinstance(size, int) else size
    expected = F.interpolate(BATCH, target, mode="bilinear", antialias=True)
    assert torch.equal(resitta.images(LAST.numpy(), size=size, resize="stretch"), expected)


@pytest.mark.parametrize(
    ("size", "box"),
    [(5, (2, 12, 0, 10)), ((14, 7), (0, 14, 1, 8)), ((7, 5), (0, 14, 0, 10)), ((1, 10), (6, 7, 0, 10))],
)
def test_cropping_keeps_the_largest_central_part(size: Any, box: tuple[int, int, int, int]) -> None:
    top, bottom, left, right = box
    part = BATCH[:, :, top:bottom, left:right]
    target = (size, size) if isinstance(size, int) else size
    expected = part if part.shape[2:] == target else F.interpolate(part, target, mode="bilinear", antialias=True)
    assert torch.equal(resitta.images(LAST.numpy(), size=size), expected)


def test_images_of_several_sizes_become_one_batch() -> None:
    mixed = [LAST[0].numpy(), LAST[1, :, :8].numpy(), LAST[2, :9].numpy()]
    with pytest.raises(BadImages, match=r"found 9×10, 14×8, 14×10; resize them with resitta.images\(images, size="):
        resitta.images(mixed)
    batch = resitta.images(mixed, size=6)
    assert torch.equal(batch, torch.cat([resitta.images(image, size=6) for image in mixed]))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_resizing_keeps_the_precision(kind: torch.dtype) -> None:
    resized = resitta.images(BATCH.to(kind), size=5)
    assert resized.dtype == kind
    torch.testing.assert_close(resized.float(), resitta.images(BATCH, size=5), rtol=0, atol=5e-3)


def test_pixels_out_of_range_are_refused_but_not_nan() -> None:
    with pytest.raises(BadImages, match=r"pixels must lie in \[0, 1\], found 0 to 255; divide by 255"):
        resitta.images(BYTES.float())
    with pytest.raises(BadImages, match="divide by 255"):
        resitta.images(list(LAST.numpy().astype(np.float64)), size=4)
    spoilt = BATCH.clone()
    spoilt[0, 0, 0, 0], spoilt[1, 0, 0, 0] = torch.nan, torch.inf
    assert resitta.images(spoilt) is spoilt


def test_channels_must_agree_with_the_normalisation(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", normalized=IMAGENET)
    with pytest.raises(BadImages, match="normalized= names 3 channels, the images have 1; match them"):
        adapter(BYTES[:, :1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size must be a side or \(height, width\), in whole pixels, found 0"),
        ({"size": (3, 4, 5)}, "size must be"),
        ({"size": True}, "size must be"),
        ({"size": "224"}, "size must be"),
        ({"resize": "pad"}, "resize must be 'crop' or 'stretch', found 'pad'"),
        ({"layout": "NWHC"}, "layout must be one of 'NCHW', .*, found 'NWHC'"),
        ({"layout": ["NCHW"]}, "layout must be one of"),
        ({"bgr": 1}, "bgr must be True or False, found 1"),
        ({"to": "gpu"}, "to must be an adapter or a device such as 'cuda:0', found 'gpu'"),
        ({"to": 1.5}, "to must be an adapter or a device"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        resitta.images(BATCH, **options)


@pytest.fixture(scope="module")
def adapter() -> resitta.Adapter:
    return adapt(tiny_network(), "resitta")


sides = st.integers(0, 9)
shapes = st.lists(sides, max_size=5).map(tuple) | st.tuples(sides, sides, sides, st.just(3))
kinds = st.sampled_from(["u1", "u2", ">u2", "?", "f2", "f4", ">f8", "f8", "i4", "i8", "u4", "c8", "O", "S2", "M8[s]"])
anything = arrays.arrays(kinds, shapes, fill=st.nothing()) | arrays.arrays(st.just("u1"), shapes)
options = st.fixed_dictionaries(
    {},
    optional={
        "size": st.none() | st.integers(-1, 12) | st.tuples(st.integers(0, 12), st.integers(1, 12)),
        "bgr": st.booleans(),
        "layout": st.sampled_from(["NCHW", "NHWC", "CHW", "HWC", "HW", "NHW"]),
        "resize": st.sampled_from(["crop", "stretch"]),
    },
)


def quiet(test: Callable[..., None]) -> Callable[..., None]:
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=checks)(
        test
    )


@pytest.mark.filterwarnings("ignore:.*invalid value.*")
@quiet
@given(source=anything | st.lists(anything, max_size=3), options=options, as_tensor=st.booleans())
def test_fuzzed_shapes_give_a_batch_or_an_error_of_the_library(
    adapter: resitta.Adapter, source: Any, options: dict[str, Any], as_tensor: bool
) -> None:
    if as_tensor:
        source = tensors_where_possible(source)
    try:
        batch = resitta.images(source, **options)
    except ResittaError:
        pass
    else:
        assert batch.ndim == 4
        assert batch.is_floating_point()
        assert batch.numel()
    with contextlib.suppress(ResittaError):
        assert adapter(source).shape[1] == 5


def tensors_where_possible(source: Any) -> Any:
    if isinstance(source, list):
        return [tensors_where_possible(one) for one in source]
    try:
        return torch.from_numpy(source)
    except (TypeError, ValueError):
        return source


@quiet
@given(
    pixels=arrays.arrays("u1", st.tuples(st.integers(1, 4), st.integers(5, 9), st.integers(5, 9), st.just(3))),
    order=st.sampled_from(["NHWC", "NCHW"]),
    kind=st.sampled_from(["array", "list of arrays", "tensor", "list of tensors"]),
    backwards=st.booleans(),
    swapped=st.booleans(),
)
def test_clear_shapes_are_the_plain_path(pixels: Any, order: str, kind: str, backwards: bool, swapped: bool) -> None:
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    given: Any = pixels[..., ::-1] if swapped else pixels
    given = given.transpose(0, 3, 1, 2) if order == "NCHW" else given
    if backwards:
        given, expected = given[::-1], expected.flip(0)
    given = torch.from_numpy(given.copy()) if "tensor" in kind else given
    batch = resitta.images(list(given) if "list" in kind else given, bgr=swapped)
    assert torch.equal(batch, expected)
    assert isinstance(batch, Tensor)
