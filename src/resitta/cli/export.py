"""The command that takes what was learned out of a saved state: export."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from resitta.cli.flags import ModelOptions
from resitta.errors import BadSetting
from resitta.settings import parse_pairs

if TYPE_CHECKING:
    from resitta.adapter import Adapter

NAME = "adapted"


def export(
    state: Path,
    *,
    model: str,
    to: Literal["onnx", "torch", "checkpoint"] | None = None,
    out: Path | None = None,
    checkpoint: Path | None = None,
    model_options: ModelOptions = (),
    method: str | None = None,
    size: int | None = None,
) -> None:
    """Write what was learned to a file that runs without this library, and a model card beside it.

    The file is compared with PyTorch on random images, and not kept if its logits differ. Methods that do more than
    ordinary BatchNorm layers can express, such as tent, are refused. The label prior is not exported.

    Examples: resitta export state/ --model wrn28x10 --checkpoint Standard.pt, or
    resitta export state.safetensors --model my_code.py:make_model --to torch --out adapted.pt2

    Parameters
    ----------
    state
        A file of adapter.save, or a folder of Autosave or of `resitta serve --state`, whose newest readable file is
        taken.
    model
        The source model, as for bench: demo, a name of `resitta models`, timm:NAME, torchvision:NAME,
        package.module:function or path/to/file.py:function.
    to
        onnx: for onnxruntime and other runtimes; torch: a torch.export program, which needs no code of the model;
        checkpoint: a safetensors state_dict for your own architecture. By default the suffix of --out decides, else
        onnx.
    out
        The file to write (default: adapted.onnx, adapted.pt2 or adapted.safetensors); the card gets .md appended.
    checkpoint
        The weights that the model had before it was adapted: the state holds only what was learned.
    model_options
        Options of the function that makes the model: pretrained=true num_classes=10 weights=DEFAULT.
    method
        Your own method as path/to/file.py:name, if the state was saved with one.
    size
        The side of the input images; known where the state holds images, and for the models of `resitta models`.
    """
    from resitta import export as write  # noqa: PLC0415  (torch, which --help does not need)
    from resitta.checkpoint.autosave import newest_state  # noqa: PLC0415
    from resitta.cli.terminal import say  # noqa: PLC0415
    from resitta.exports.card import PRIOR_LEFT_OUT  # noqa: PLC0415
    from resitta.exports.formats import FORMATS  # noqa: PLC0415

    kind = to or ("onnx" if out is None else None)
    path = out or Path(NAME).with_suffix(FORMATS[str(kind)].suffix)
    saved = newest_state(state) if state.is_dir() else state
    if path.resolve() == saved.resolve():
        raise BadSetting(f"{path} is the state itself, which the export would replace; name another file with --out")
    adapter = load(saved, model, checkpoint, model_options, method)
    side = size or _usual_side(model, adapter)
    made = write(adapter, path, to=kind, shape=None if side is None else (3, side, side))
    say(f"{saved}: {adapter.method.name}, samples {adapter.stats.samples:,}, updates {adapter.stats.updates:,}")
    say(f"written: {made.path}, whose logits differ from PyTorch's by at most {made.difference:.2g}; {made.card}")
    if adapter.prior is not None:
        say(f"The label prior is not in it: {PRIOR_LEFT_OUT}.")


def load(saved: Path, model: str, checkpoint: Path | None, options: ModelOptions, method: str | None) -> "Adapter":
    """Make the source model, and load the state for it."""
    import resitta  # noqa: PLC0415
    from resitta.cli.serve import DEMO, demo_network  # noqa: PLC0415
    from resitta.models import create  # noqa: PLC0415
    from resitta.models.user_code import load_method  # noqa: PLC0415

    if method is not None:
        load_method(method)
    own = demo_network() if model == DEMO else create(model, checkpoint, **parse_pairs(options, "--model-set"))
    return resitta.load(own, saved)


def _usual_side(model: str, adapter: "Adapter") -> int | None:
    """The side of a named model's images, unless the adapter knows better."""
    from resitta.cli.serve import DEMO, DEMO_SIZE  # noqa: PLC0415
    from resitta.exports.api import image_shape  # noqa: PLC0415
    from resitta.models import MODELS  # noqa: PLC0415

    if image_shape(adapter) is not None:
        return None
    return DEMO_SIZE if model == DEMO else MODELS[model].image_size if model in MODELS else None
