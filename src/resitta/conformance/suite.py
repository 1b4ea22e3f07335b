"""Runs the suite."""

import copy
from typing import Any, get_args

import torch
from torch import Tensor, nn

from resitta.conformance.promises import CHECKS
from resitta.conformance.subject import Norm, Subject, spread_images, spread_network
from resitta.errors import BadSetting, NonConformant
from resitta.inputs import for_network
from resitta.method import Method, create, takes_source
from resitta.training.network import Network


def check_method(
    method: str | Method,
    *,
    network: Norm = "batch_norm",
    model: nn.Module | None = None,
    images: Any = None,
    shape: tuple[int, int, int] = (3, 16, 16),
    device: str = "cpu",
    **options: Any,
) -> tuple[str, ...]:
    """Run the whole suite on a method and return the names of the checks it passed.

    Args:
        method: a registered name, or a method with its settings.
        network: the kind of the small network to check with: "batch_norm", "layer_norm" (tokens) or "group_norm". It is
            certain of some images and uncertain of others, so that a method that selects samples has some to select.
        model: a classifier of your own to check with instead. A method that needs source data gets some of the
            images, unless its setting `source` holds others.
        images: N×C×H×W in [0, 1] for your model, or what else `resitta.images` takes, used again and again in this
            order; by default random ones.
        shape: channels, height and width of the random images.
        device: where to run.
        options: further options of `adapt` that the model needs, such as `output=` or `normalized=`.

    Raises:
        NonConformant: names the promise that was broken and how.
    """
    if network not in get_args(Norm):
        raise BadSetting(f"network must be one of {', '.join(map(repr, get_args(Norm)))}, found {network!r}")
    place = torch.device(device)
    pool = spread_images(400, shape) if images is None else _batch(images, options.get("normalized"))
    chosen = _with_source(create(method), pool)
    source = spread_network(pool.shape[1], norm=network) if model is None else copy.deepcopy(model)
    subject = Subject(chosen, source.to(place).eval(), pool.to(place), place, options)
    for check in CHECKS:
        try:
            with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
                check(subject)
        except NonConformant as error:
            raise NonConformant(f"{chosen.name} fails {check.__name__}: {error}") from error
    return tuple(check.__name__ for check in CHECKS)


def _with_source(method: Method, pool: Tensor) -> Method:
    """Give a method that needs source data some of the images."""
    lacks = takes_source(method) and vars(method)["source"] is None
    return create(method, source=pool[:: max(1, len(pool) // 100)]) if lacks else method


def _batch(images: Any, normalized: Any) -> Tensor:
    """Convert images as an adapter would that is made with these options."""
    is_batch = isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point() and len(images)
    return images if is_batch else for_network(images, Network(nn.Identity(), normalized=normalized))
