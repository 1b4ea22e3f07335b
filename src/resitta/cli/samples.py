"""The sample images that a service offers its live page."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resitta.data.datasets import ArrayImages


def photographs() -> "ArrayImages":
    """The photographs of the demo.

    >>> photographs().read([0]).shape
    torch.Size([1, 3, 32, 32])
    """
    from resitta.demo.photographs import load_photographs  # noqa: PLC0415

    return load_photographs()


def digits() -> "ArrayImages":
    """Handwritten digits that the network of `resitta serve demo` has not seen. They need the extra `demo`.

    >>> digits().read([0]).shape
    torch.Size([1, 3, 32, 32])
    """
    from resitta.demo.digits import load_digits, unseen_digits  # noqa: PLC0415

    found = load_digits()
    return unseen_digits(found, len(found.test), seed=0)
