"""Every expression that a refusal suggests is carried out here, and what comes of it is taken."""

import re
from typing import Any

import numpy
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.errors import BadImages

BYTES = torch.randint(0, 256, (4, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
BATCH = BYTES.float() / 255
LAST = BYTES.permute(0, 2, 3, 1).contiguous()
SPARSE = BATCH.where(BATCH > 0.5, 0.0)


def pictures() -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    return [image.fromarray(array) for array in LAST.numpy()]


def refusal(model: nn.Module, images: Any) -> str:
    adapter = resitta.adapt(model)
    with pytest.raises(BadImages) as caught:
        adapter(images)
    assert adapter.samples == 0
    assert "\n" not in str(caught.value)
    return str(caught.value)


CASES: dict[str, tuple[Any, str, Tensor]] = {
    "uint8": (BYTES, "found torch.uint8", BATCH),
    "uint8, channels last": (LAST, "found torch.uint8", BATCH),
    "one uint8 image, channels last": (LAST[0], r"four axes N×C×H×W, found shape \(10, 10, 3\)", BATCH[:1]),
    "one image": (BATCH[0], r"four axes N×C×H×W, found shape \(3, 10, 10\)", BATCH[:1]),
    "floats, channels last": (LAST.float() / 255, r"the model refused .* they look like N×H×W×C", BATCH),
    "floats to 255, channels last": (LAST.float(), "divide by 255; they look like N×H×W×C", BATCH),
    "array": (LAST.numpy(), r"found an ndarray of uint8 with shape \(4, 10, 10, 3\)", BATCH),
    "one array": (LAST[0].numpy(), r"found an ndarray of uint8 with shape \(10, 10, 3\)", BATCH[:1]),
    "array of floats": (BATCH.numpy(), "found an ndarray of float32", BATCH),
    "list of arrays": (list(LAST.numpy()), "found a list of 4 ndarrays", BATCH),
    "list of tensors": (list(BATCH), "found a list of 4 Tensors", BATCH),
    "list of uint8 tensors": (list(LAST), "found a list of 4 Tensors", BATCH),
    "dict": ({"label": BATCH[:, 0, 0, 0], "image": BATCH}, "found a dict with the keys 'label', 'image'", BATCH),
    "pair": ((BATCH, torch.zeros(4)), "found a tuple that begins with a batch of images", BATCH),
    "sparse": (SPARSE.to_sparse(), "found a tensor of layout torch.sparse_coo", SPARSE),
    "mkldnn": (BATCH.to_mkldnn(), "found a tensor of layout torch._mkldnn", BATCH),
    "float8": (SPARSE.to(torch.float8_e5m2), "found torch.float8_e5m2", SPARSE.to(torch.float8_e5m2).float()),
}


@pytest.mark.filterwarnings("ignore:.*(sparse|[Nn]ested|[Qq]uant|TypedStorage).*")
@pytest.mark.parametrize("case", CASES)
def test_a_refusal_names_the_expression_that_helps(model: nn.Module, case: str) -> None:
    images, found, expected = CASES[case]
    said = refusal(model, images)
    assert re.search(found, said), said
    carried_out(said, images, expected)


def carried_out(said: str, images: Any, expected: Tensor) -> None:
    """Evaluate what a refusal says, and see that it gives the batch that was meant."""
    advice = re.findall(r"(?:pass|by 255:|axis with|convert with) (.*?)(?: \(OpenCV.*|; .*)?$", said)[-1]
    given = eval(advice, {"images": images, "batch": images, "torch": torch, "numpy": numpy})
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("single", [True, False])
def test_pictures_are_stacked(model: nn.Module, single: bool) -> None:
    images = pictures()
    said = refusal(model, images[0] if single else images)
    assert ("found a PIL image;" if single else "found a list of 4 PIL images;") in said
    carried_out(said, images[0] if single else images, BATCH[:1] if single else BATCH)


@pytest.mark.parametrize(("images", "flipped"), [(LAST, "images.flip(-1)"), (LAST.numpy(), "images[..., ::-1].copy()")])
def test_the_order_of_colours_is_named_where_opencv_may_be_behind_it(
    model: nn.Module, images: Any, flipped: str
) -> None:
    assert f"(OpenCV reads BGR: {flipped} first)" in refusal(model, images)
    swapped = eval(flipped, {"images": images})
    torch.testing.assert_close(torch.as_tensor(swapped), LAST.flip(-1))


@pytest.mark.filterwarnings("ignore:.*(prototype|deprecated).*")
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (lambda: torch.nested.nested_tensor(list(BATCH)), "found a nested tensor; pass images of one size together"),
        (lambda: torch.nested.nested_tensor(list(BATCH), layout=torch.jagged), "found a nested tensor"),
        (lambda: torch.quantize_per_tensor(BATCH, 0.1, 0, torch.quint8), r"found torch.quint8; pass images.dequantize"),
        (lambda: BATCH.to(torch.complex64), r"found torch.complex64; take the magnitude, images.abs\(\)"),
        (lambda: BATCH.to(torch.int32), r"found torch.int32; convert with images.float\(\), and divide by the highest"),
        (lambda: BATCH > 0.5, "found torch.bool"),
        (lambda: torch.rand(8, 1, 16000), r"shape \(8, 1, 16000\); N×1×L looks like audio.* turn it into spectrograms"),
        (lambda: torch.rand(8, 100), r"found shape \(8, 100\); reshape them"),
        (lambda: {"label": 3}, "found a dict with the keys 'label'; pass the tensor of the images alone"),
        (lambda: [], "found list; try torch.as_tensor"),
        (lambda: "cat.jpg", "found str; try torch.as_tensor"),
        (lambda: None, "found NoneType"),
        (lambda: np.zeros(3), r"found an ndarray of float64 with shape \(3,\)"),
    ],
)
def test_other_kinds_are_named(model: nn.Module, images: Any, message: str) -> None:
    assert re.search(message, refusal(model, images()))


def test_images_of_three_rows_are_not_taken_for_channels_last() -> None:
    thin = nn.Sequential(nn.Conv2d(3, 4, (3, 1)), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(thin)(torch.rand(2, 3, 10, 3)).shape == (2, 4)
    spectral = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(spectral)(torch.rand(2, 8, 3, 3)).shape == (2, 4)
