"""`resitta.export`: what an adapter has learned, as a file that runs without this library, verified."""

import copy
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.checkpoint.atomic_write import write_atomically
from resitta.errors import BadSetting
from resitta.exports.card import Learned, model_card
from resitta.exports.formats import INPUT, OUTPUT, FileFormat, Format, Logits, find_format, quietly
from resitta.exports.verify import BATCHES, largest_difference, random_batches
from resitta.runtime.locks import defer_signals
from resitta.training.sharing import share

Shape = tuple[int, int, int]
VERIFIED = "run with {} on {} random images in batches of {}: logits differ from the model's by at most {:.2g}"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that `resitta.export` wrote, and how far its logits were from the model's at most."""

    path: Path
    card: Path
    sha256: str
    difference: float


def export(
    adapter: Adapter,
    path: str | os.PathLike[str],
    *,
    to: Format | None = None,
    shape: Shape | None = None,
) -> Exported:
    """Write what an adapter has learned to a file that runs without this library, and a model card beside it.

    The file is opened again and compared with the model on random images; it is kept only if their logits agree to
    1e-4 of the largest one (absolutely where that is below 1). Files are written atomically.

    An ONNX file and a torch.export program take float32 images of one shape in batches of any size, with the
    preprocessing that the adapter was given them with, and return logits. A checkpoint is the `state_dict` of your own
    architecture in its own precision. The label prior is in none of them.

    Args:
        adapter: an adapter, or the `adapter` of a fleet's stream. It is not changed.
        path: the file to write. The card gets the same name with `.md` appended.
        to: "onnx", "torch" or "checkpoint"; by default the suffix of the path decides: .onnx, .pt2 or .safetensors.
        shape: channels, height and width of an image; by default those of the images in the adapter's memory.

    Raises:
        NotExportable: the method cannot be exported, the model cannot be captured, or the file does not agree.

    >>> import tempfile, resitta
    >>> from resitta.conformance import tiny_network
    >>> adapter = resitta.adapt(tiny_network(), "resitta")
    >>> _ = adapter(torch.rand(64, 3, 8, 8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = export(adapter, f"{folder}/adapted.safetensors")
    ...     made.card.name, made.card.read_text("utf-8").splitlines()[2]
    ('adapted.safetensors.md', 'Sequential, adapted to unlabeled images by ResiTTA (resitta).')
    """
    path = Path(path)
    chosen = find_format(path, to)
    with defer_signals(), adapter.lock:  # weights and card are of one moment
        model, learned, shape = adapter.export(), Learned.of(adapter), shape or image_shape(adapter)
    if shape is None:
        reason = "the adapter has no images in a memory, so their shape is not known"
        raise BadSetting(f"{reason}; pass shape=(channels, height, width), such as (3, 224, 224), or --size 224")
    batches, classes = example_batches(adapter, shape)
    data, difference = verified(adapter, model, chosen, batches)
    digest, card = hashlib.sha256(data).hexdigest(), path.with_name(f"{path.name}.md")
    rows = [
        ("file", f"{chosen.title}, {len(data):,} bytes, SHA-256 `{digest}`"),
        ("verified", VERIFIED.format(chosen.run_with, sum(BATCHES), ", ".join(map(str, BATCHES)), difference)),
        ("input", f"`{INPUT}`: N×{'×'.join(map(str, shape))}, any N, {precision(adapter, chosen)}"),
        ("output", f"`{OUTPUT}`: N×{classes}; softmax makes probabilities of them"),
    ]
    write_atomically(path, data)
    write_atomically(card, model_card(path.name, rows, learned).encode())
    return Exported(path=path, card=card, sha256=digest, difference=difference)


def image_shape(adapter: Adapter) -> Shape | None:
    """The shape of the images in the adapter's memory; None if it keeps none.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> adapter = resitta.adapt(tiny_network(), "resitta")
    >>> _ = adapter(torch.rand(64, 3, 8, 8))
    >>> image_shape(adapter)
    (3, 8, 8)
    """
    memory = adapter.learner.memory()
    if memory is None or not memory.size:
        return None
    channels, height, width = memory.images.shape[1:]
    return channels, height, width


def example_batches(adapter: Adapter, shape: Shape) -> tuple[list[Tensor], int]:
    """Return random images as the model takes them, and the number of its logits; refuse a shape it does not take."""
    source = adapter.source
    with torch.inference_mode(False), torch.no_grad():
        batches = [source.from_pixels(pixels.to(source.device)) for pixels in random_batches(shape)]
        twin = source.around(share(source.model, own=())).eval()  # a forward pass may change buffers
        return batches, twin(batches[0].to(source.dtype)).shape[1]


def verified(adapter: Adapter, model: nn.Module, chosen: FileFormat, batches: list[Tensor]) -> tuple[bytes, float]:
    """Return the bytes of a file, and how far its logits are from the model's; refuse one that does not agree."""
    dtype, output = torch.float32 if chosen.float32 else adapter.source.dtype, adapter.options.output
    with torch.inference_mode(False), torch.no_grad(), quietly():
        nets = (model, copy.deepcopy(adapter.source.model))
        plain, origin = (Logits(net, output).to("cpu", dtype).eval() for net in nets)
        images = [batch.to("cpu", dtype) for batch in batches]
        data = chosen.write(plain, images[0])
        return data, largest_difference(chosen.open(data, origin), plain, images, of=f"the {chosen.title} file")


def precision(adapter: Adapter, chosen: FileFormat) -> str:
    """What a file computes in, and what the model computed in where that differs."""
    own = str(adapter.source.dtype).removeprefix("torch.")
    return own if own == "float32" or not chosen.float32 else f"float32 (the adapter computed in {own})"
