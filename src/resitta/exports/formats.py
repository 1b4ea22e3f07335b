"""The files that a model can be exported to: how each is written, and opened again to be verified."""

import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from resitta.errors import BadSetting, NotExportable, require
from resitta.training.network import Output, pick

Format = Literal["onnx", "torch", "checkpoint"]
Run = Callable[[Tensor], Tensor]
"""From images to logits."""
INPUT, OUTPUT, BATCH = "images", "logits", "batch"
"""What an ONNX file calls its input, its output, and their first dimension."""


class Logits(nn.Module):
    """A model that returns its logits alone; `model` is the caller's, also if torch.compile was applied to it.

    >>> Logits(nn.Linear(2, 3), output=None)(torch.zeros(1, 2)).shape
    torch.Size([1, 3])
    """

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, N×C."""
        logits: Tensor = pick(self.model(images), self.output)
        return logits


class FileFormat(ABC):
    """How one kind of file is written, and opened again."""

    title: ClassVar[str]
    suffix: ClassVar[str]
    run_with: ClassVar[str]
    float32: ClassVar[bool] = True
    """Whether the file computes in float32 whatever the model's own precision is."""

    @abstractmethod
    def write(self, model: Logits, images: Tensor) -> bytes:
        """Return the content of the file; `images` are two examples."""

    @abstractmethod
    def open(self, data: bytes, source: Logits) -> Run:
        """Return what runs the content; `source` is a copy of the source model, for a file without code."""


class Onnx(FileFormat):
    """An ONNX file, translated from what torch.export captures."""

    title, suffix, run_with = "ONNX", ".onnx", "onnxruntime"

    def write(self, model: Logits, images: Tensor) -> bytes:
        """Translate; where that fails, take the older exporter, which traces what has proved to be without branches."""
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, "export")
        program, names = captured(model, images), {"input_names": [INPUT], "output_names": [OUTPUT]}
        convert: Callable[..., Any] = torch.onnx.export  # its arguments differ between versions
        try:
            translated = convert(program, dynamo=True, dynamic_shapes=({0: BATCH},), verbose=False, **names)
            return bytes(translated.model_proto.SerializeToString())
        except Exception as error:  # an operator that it does not know, or an onnxscript of another time than torch
            buffer, axes = io.BytesIO(), {INPUT: {0: BATCH}, OUTPUT: {0: BATCH}}
            try:
                convert(model, (images,), buffer, dynamo=False, dynamic_axes=axes, **names)
            except Exception:  # the first reason is the one to tell
                advice = "use 'torch' or 'checkpoint'"
                raise NotExportable(f"torch.onnx cannot translate it: {reason_of(error)}; {advice}") from error
            return buffer.getvalue()

    def open(self, data: bytes, source: Logits) -> Run:
        """Run it with onnxruntime on the CPU."""
        runtime = require("onnxruntime", "export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # its threads spin while they wait, which a busy machine would feel
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


class Program(FileFormat):
    """A program of torch.export, which runs without the model's code."""

    title, suffix, run_with = "torch.export program", ".pt2", "torch.export.load"

    def write(self, model: Logits, images: Tensor) -> bytes:
        """Capture the model."""
        buffer = io.BytesIO()
        torch.export.save(captured(model, images), buffer)
        return buffer.getvalue()

    def open(self, data: bytes, source: Logits) -> Run:
        """Load the program."""
        return torch.export.load(io.BytesIO(data)).module()


class Checkpoint(FileFormat):
    """The `state_dict` of the caller's architecture, in its own precision."""

    title, suffix, run_with, float32 = "state_dict", ".safetensors", "load_state_dict", False

    def write(self, model: Logits, images: Tensor) -> bytes:
        """Write all tensors; tied ones are written once for each name."""
        state = model.model.state_dict()
        others = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if others:
            raise NotExportable(f"the model's state_dict holds {others[0]!r}, which is no tensor; use torch.save")
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        return bytes(require("safetensors.torch", "state").save(copies, {"format": "pt"}))

    def open(self, data: bytes, source: Logits) -> Run:
        """Load it into the source model; every name must be there, and no other."""
        source.model.load_state_dict(require("safetensors.torch", "state").load(data), strict=True)
        return source


FORMATS: dict[str, FileFormat] = {"onnx": Onnx(), "torch": Program(), "checkpoint": Checkpoint()}


def find_format(path: Path, to: str | None) -> FileFormat:
    """Return the format that is asked for, or that the name of a file tells.

    >>> find_format(Path("adapted.pt2"), None).title
    'torch.export program'
    """
    suffixes = {found.suffix: name for name, found in FORMATS.items()}
    name = suffixes.get(path.suffix) if to is None else to
    if name not in FORMATS:
        found = f"the format of {path} is not known by its suffix" if to is None else f"there is no format {to!r}"
        known = ", ".join(f"{name!r} ({suffix})" for suffix, name in suffixes.items())
        raise BadSetting(f"{found}; pass to=, one of {known}")
    return FORMATS[name]


def captured(model: Logits, images: Tensor) -> "torch.export.ExportedProgram":
    """Capture a model for batches of any size; control flow that depends on values is refused, not recorded.

    The lines of the model's code that torch notes in the program are removed: files go to other people.
    """
    capture = partial(torch.export.export, model, (images,), dynamic_shapes=({0: torch.export.Dim(BATCH)},))
    try:
        program = capture(strict=False)
    except Exception:  # torch.export raises errors of many kinds
        try:
            program = capture(strict=True)  # reads the code itself: it knows len(images), for one
        except Exception as error:
            advice = "its code must take batches of any size and not branch on values; or export a 'checkpoint'"
            raise NotExportable(f"torch.export cannot capture this model: {reason_of(error)}; {advice}") from error
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


def reason_of(error: BaseException) -> str:
    """The first line of the error at the root of others.

    >>> reason_of(ValueError("no such axis\\nand much more"))
    'no such axis'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the exporters' warnings from the user, who can do nothing about them; the file is verified instead."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
