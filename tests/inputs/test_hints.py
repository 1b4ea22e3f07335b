"""What is refused is named, with the expression that helps; the expression is carried out."""

import re
from typing import Any

import numpy
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.errors import BadImages

BATCH = torch.rand(4, 3, 10, 10, generator=torch.Generator().manual_seed(0))
SPARSE = BATCH.where(BATCH > 0.5, 0.0)
ROWS = torch.rand(3, 3, 3, 10, generator=torch.Generator().manual_seed(0))


def refusal(model: nn.Module, images: Any) -> str:
    adapter = resitta.adapt(model, "resitta")
    with pytest.raises(BadImages) as caught:
        adapter(images)
    assert adapter.samples == 0
    assert "\n" not in str(caught.value)
    return str(caught.value)


def last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).contiguous()


CASES: dict[str, tuple[Any, str, Tensor]] = {
    "floats, channels last": (last(BATCH), r"the model refused .* they look like N×H×W×C", BATCH),
    "floats to 255": (BATCH.numpy() * np.float32(255), "found .* to 25.*; divide by 255", BATCH),
    "dict": ({"label": BATCH[:, 0, 0, 0], "image": BATCH}, "found a dict with the keys 'label', 'image'", BATCH),
    "pair": ((BATCH, torch.zeros(4)), "found a tuple that begins with a batch of images", BATCH),
    "sparse": (SPARSE.to_sparse(), "found a tensor of layout torch.sparse_coo", SPARSE),
    "mkldnn": (BATCH.to_mkldnn(), "found a tensor of layout torch._mkldnn", BATCH),
    "float8": (SPARSE.to(torch.float8_e5m2), "found torch.float8_e5m2", SPARSE.to(torch.float8_e5m2).float()),
    "long doubles": (BATCH.numpy().astype(np.longdouble), "found (longdouble|float128)", BATCH),
    "rows of uint8": (
        (last(ROWS).numpy() * 255).astype(np.uint8),
        r"shape \(3, 3, 10, 3\), which may be N×C×H×W or N×H×W×C",
        (ROWS * 255).byte().float() / 255,
    ),
    "one image": (last(ROWS)[0], r"shape \(3, 10, 3\), which may be C×H×W or H×W×C", ROWS[:1]),
    "floats with two axes": (BATCH[0, 0], r"shape \(10, 10\), which may be rows of features", BATCH[:1, :1]),
    "many channels": (
        np.zeros((2, 8, 10, 10), np.uint8),
        "where no axis is one of 1, 3 or 4",
        torch.zeros(2, 8, 10, 10),
    ),
}


@pytest.mark.filterwarnings("ignore:.*(sparse|[Nn]ested|[Qq]uant|TypedStorage).*")
@pytest.mark.parametrize("case", CASES)
def test_a_refusal_names_the_expression_that_helps(model: nn.Module, case: str) -> None:
    images, found, expected = CASES[case]
    said = refusal(model, images)
    assert re.search(found, said), said
    advice = re.findall(r"(?:pass|decide with|the axes with|convert with) (.*?)(?:; .*|, or layout=.*)?$", said)
    names = {"images": images, "batch": images, "torch": torch, "numpy": numpy, "resitta": resitta}
    given = eval((advice or ["images / 255"])[-1], {**names, "adapter": resitta.adapt(model, "resitta")})
    torch.testing.assert_close(torch.as_tensor(given), expected, rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*(prototype|deprecated).*")
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            lambda: torch.nested.nested_tensor(list(BATCH)),
            r"found a nested tensor; pass a list of images, images.unbind",
        ),
        (lambda: torch.nested.nested_tensor(list(BATCH), layout=torch.jagged), "found a nested tensor"),
        (lambda: torch.quantize_per_tensor(BATCH, 0.1, 0, torch.quint8), r"found torch.quint8; pass images.dequantize"),
        (lambda: BATCH.to(torch.complex64), r"found torch.complex64; take the magnitude, abs\(images\)"),
        (lambda: BATCH.to(torch.int32), r"found torch.int32; convert with images / highest"),
        (lambda: BATCH.byte().numpy().astype(np.int64), r"found int64; convert with images / highest"),
        (lambda: np.array([None, "cat"]), "found an array of object"),
        (lambda: torch.rand(8, 1, 16000), r"shape \(8, 1, 16000\); N×1×L looks like audio.* turn it into spectrograms"),
        (lambda: torch.rand(1, 1, 16000), r"shape \(1, 1, 16000\); N×1×L looks like audio"),
        (lambda: torch.rand(16, 28, 28), r"shape \(16, 28, 28\), where no axis is one of 1, 3 or 4 channels"),
        (lambda: torch.rand(2, 2, 3, 8, 8), r"found shape \(2, 2, 3, 8, 8\); reshape them"),
        (lambda: np.zeros(3), r"found shape \(3,\); reshape them"),
        (lambda: BATCH[:0], r"the batch is empty: shape \(0, 3, 10, 10\)"),
        (lambda: np.zeros((0, 10, 10, 3), np.uint8), r"the batch is empty: shape \(0, 3, 10, 10\)"),
        (lambda: {"label": 3}, "found a dict with the keys 'label'; pass the images alone"),
        (lambda: [], "found list; pass a tensor, an array, a PIL image or a list of them"),
        (lambda: [[0.5]], "found a list that holds list; pass a list of images"),
        (lambda: "cat.jpg", "found str; pass a tensor"),
        (lambda: None, "found NoneType"),
    ],
)
def test_other_kinds_are_named(model: nn.Module, images: Any, message: str) -> None:
    assert re.search(message, refusal(model, images())), refusal(model, images())


def test_float_tensors_that_look_channels_last_are_not_guessed() -> None:
    with pytest.raises(BadImages, match=r"may be N×C×H×W or N×H×W×C; decide with .*layout='NHWC'.* or layout='NCHW'"):
        resitta.images(last(BATCH))
    assert torch.equal(resitta.images(last(BATCH), layout="NHWC"), BATCH)
    assert resitta.images(last(BATCH), layout="NCHW").shape == (4, 10, 10, 3)
