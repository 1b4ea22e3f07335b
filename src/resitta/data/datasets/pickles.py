"""Read CIFAR's pickled batches without running what a pickle may contain.

A pickle is a program that can import and call anything, nest without end and exhaust the memory; restricting
`find_class` of `pickle.Unpickler` prevents only the first. This interpreter executes the few harmless opcodes: they
build numbers, strings, lists, tuples, dicts, and inert stand-ins for numpy's array and dtype. Nothing is imported,
called or hashed; size, number of opcodes and nesting are limited.
"""

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resitta.errors import BadData

MOST_BYTES = 1 << 29
"""The largest public batch has 155 MB."""
MOST_STEPS = 1_000_000
"""The public batches have four opcodes per image, and at most 50,000 images."""
DEEPEST = 16
"""How deep lists, dicts and tuples may nest; the public batches nest four deep at most."""


class _Unreadable(Exception):
    """The pickle holds what no CIFAR batch holds."""


class _Tuple(tuple[Any, ...]):
    """A tuple that knows how deep it nests."""

    depth = 1


class _DType:
    """Stands in for numpy's dtype."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.name = arguments[0]

    def build(self, state: Any) -> None:
        """Ignore byte order and the like: meaningless for single bytes."""


class _Array:
    """Stands in for an array of bytes."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.pixels: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def build(self, state: Any) -> None:
        _version, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or dtype.name not in ("u1", b"u1"):
            raise _Unreadable("its array has another dtype than uint8")
        self.pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


KNOWN: dict[tuple[Any, Any], type[_DType | _Array] | None] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,  # only named, as an argument of _reconstruct
    ("numpy", "dtype"): _DType,
}


class _Machine:
    """The interpreter: a stack of values, the marks on it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """Execute the opcodes and return the last value."""
        for number, (code, argument, _) in enumerate(pickletools.genops(data)):
            step = STEPS.get(code.name)
            if step is None:
                raise _Unreadable(f"it holds the instruction {code.name}, which no CIFAR file needs")
            if number >= MOST_STEPS:
                raise _Unreadable(f"it has more than {MOST_STEPS:,} instructions")
            step(self, argument)
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def mark(self, _: Any) -> None:
        if len(self.marks) >= DEEPEST:
            raise _Unreadable(f"it nests more than {DEEPEST} deep")
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken, self.stack[start:] = self.stack[start:], []
        return taken

    def tuple_of(self, values: list[Any]) -> None:
        made = _Tuple(values)
        made.depth = 1 + max((value.depth for value in values if isinstance(value, _Tuple)), default=0)
        if made.depth > DEEPEST:
            raise _Unreadable(f"it nests more than {DEEPEST} deep")
        self.push(made)

    def last(self, number: int) -> list[Any]:
        return [self.stack.pop() for _ in range(number)][::-1]

    def name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):  # hashing or printing anything else may never end
            raise _Unreadable("it asks for a name that is no string")
        if (module, name) not in KNOWN:
            raise _Unreadable(f"it asks for {module:.80}.{name:.80}, which no CIFAR file needs")
        self.push(KNOWN[module, name])

    def make(self, _: Any) -> None:
        """Make a stand-in; its class is below its arguments."""
        kind, arguments = self.last(2)
        if kind not in (_Array, _DType) or not isinstance(arguments, tuple) or not arguments:
            raise _Unreadable("it calls something that is no array")
        self.push(kind(arguments))

    def build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _DType):
            raise _Unreadable("it changes something that is no array")
        self.stack[-1].build(state)

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise _Unreadable("it appends to something that is no list")
        self.stack[-1].extend(values)

    def update(self, values: list[Any]) -> None:
        """Add to a dict, whose keys are strings."""
        target, keys = self.stack[-1], values[::2]
        if not isinstance(target, dict) or not all(isinstance(key, str | bytes) for key in keys):
            raise _Unreadable("it has a dict whose keys are no strings")
        target.update(zip(keys, values[1::2], strict=True))


Step = Callable[[_Machine, Any], Any]
STEPS: dict[str, Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _machine, _argument: None),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"), _Machine.push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _Machine.push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push),
    **dict.fromkeys(
        ("STRING", "BINSTRING", "SHORT_BINSTRING"),  # of Python 2: bytes
        lambda machine, text: machine.push(text.encode("latin-1")),
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": _Machine.mark,
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.tuple_of(machine.since_mark()),
    "TUPLE1": lambda machine, _: machine.tuple_of(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.tuple_of(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.tuple_of(machine.last(3)),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.update(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.since_mark()),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "REDUCE": _Machine.make,
    "BUILD": _Machine.build,
    "MEMOIZE": lambda machine, _: machine.keep(len(machine.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, place: machine.keep(place)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, place: machine.push(machine.memo[place])),
}


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Return the pixels (N×3072) and labels of one CIFAR batch; CIFAR-100 gives its fine labels."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _Unreadable(f"it has {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are read")
        batch = _Machine().run(path.read_bytes())
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        labels = entries["fine_labels"] if "fine_labels" in entries else entries["labels"]
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
            raise _Unreadable("its labels are no list of whole numbers")
        return entries["data"].pixels, labels
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadData(f"{path} is not a CIFAR batch ({error}); download it again.") from error
