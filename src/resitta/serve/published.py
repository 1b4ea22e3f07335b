"""What readers predict with: copies of the teacher, one for each version, unchanged as long as somebody holds them."""

import weakref
from dataclasses import dataclass

import torch

from resitta.adapter import Adapter
from resitta.errors import NotExportable
from resitta.method import Learner
from resitta.runtime.background import learned
from resitta.training.network import Network


@dataclass(frozen=True)
class Published:
    """A version of the network that predicts; no network where the method predicts in a way that cannot be exported.

    Hold the whole record, not the network alone, as long as you predict with it.
    """

    version: int
    network: Network | None


class Publisher:
    """Copies what an adapter has learned. A copy that nobody holds any more is used again.

    Building a network takes far longer than copying the few tensors that learning moves.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> publisher = Publisher(resitta.adapt(tiny_network(), "resitta"))
    >>> publisher.publish(version=1).version
    1
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._unused: list[Network] = []

    @torch.no_grad()
    def publish(self, version: int) -> Published:
        """Copy the network that predicts, as it is now."""
        learner = self.adapter.learner
        teacher = learner.exportable_network()
        if teacher is None or not absorbs(learner):
            return Published(version, exported(self.adapter))
        network = self._unused.pop() if self._unused else self.adapter.source.fork(self.adapter.method.trains)
        torch._foreach_copy_(learned(network), learned(teacher))
        published = Published(version, network.requires_grad_(False))
        weakref.finalize(published, self._unused.append, network).atexit = False
        return published


def absorbs(learner: Learner) -> bool:
    """Whether a learner can learn from what a copy of its teacher has predicted."""
    return learner.learns_from_predictions


def exported(adapter: Adapter) -> Network | None:
    """A copy of the network that predicts, in its ordinary form, or None if the method has none."""
    try:
        model = adapter.export().requires_grad_(False)
    except NotExportable:
        return None
    return adapter.source.around(model)
