"""One stream of a fleet, as its user holds it: `fleet["camera-3"]`."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.checkpoint.io import StatePath
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import EventHandler, Listener
from resitta.monitor.stats import Stats
from resitta.runtime.locks import synchronized
from resitta.runtime.pausing import Pause, Pauses

if TYPE_CHECKING:
    from resitta.fleets.api import Fleet


class Stream:
    """A stream by its name: call it on images, as an adapter. It stays valid while the stream is on disk.

    >>> import torch, resitta
    >>> from resitta.conformance import tiny_network
    >>> fleet = resitta.fleet(tiny_network(), "resitta")
    >>> camera = fleet["camera-3"]
    >>> camera(torch.rand(4, 3, 8, 8)).shape, camera.stats.samples
    (torch.Size([4, 5]), 4)
    """

    def __init__(self, fleet: "Fleet", name: str, pauses: Pauses) -> None:
        self.fleet, self.name, self.lock, self.pauses = fleet, name, fleet.lock, pauses

    def __call__(self, images: Any) -> Tensor:
        """Return the logits of a batch of this stream, and learn from it."""
        return self.fleet(images, self.name)

    @synchronized
    def learn_from(self, images: Any, logits: Tensor) -> None:
        """Learn from a batch of this stream that was predicted elsewhere, such as by a copy; see `Adapter.learn_from`.

        The update that may follow does not wait for a turn.

        >>> import torch, resitta
        >>> from resitta.conformance import tiny_network
        >>> camera = resitta.fleet(tiny_network(), "resitta")["camera-3"]
        >>> deployed, images = camera.export(), torch.rand(4, 3, 8, 8)
        >>> camera.learn_from(images, deployed(images))
        >>> camera.stats.samples
        4
        """
        adapter, member = self.adapter, self.fleet.roster.members[self.name]
        if self.fleet.only_predicts(member):
            return
        try:
            adapter.learn_from(images, logits)
        finally:
            adapter.rollback.free()
        self.fleet.roster.save_if_due(member)

    @property
    @synchronized
    def adapter(self) -> Adapter:
        """The stream's adapter, which has learned all that waited; leave its device and precision as they are.

        It is the stream only as long as that stays in memory: ask for it again rather than keep it.
        """
        member = self.fleet.roster.enter(self.name)
        self.fleet.roster.settle(member)
        return member.here

    @property
    @synchronized
    def stats(self) -> Stats:
        """The statistics of its adapter."""
        return self.adapter.stats

    def paused(self) -> Pause["Stream"]:
        """Predict without learning inside the `with` block."""
        return Pause(self)

    @synchronized
    def reset(self) -> None:
        """Return to the source."""
        self.adapter.reset()

    @synchronized
    def export(self) -> nn.Module:
        """Return the caller's architecture with what this stream has learned."""
        return self.adapter.export()

    @synchronized
    def save(self, path: StatePath) -> None:
        """Write what this stream has learned to a file, for `restore`, or for `resitta.load` as a single adapter."""
        self.adapter.save(path)

    @synchronized
    def restore(self, path: StatePath) -> None:
        """Continue from a file of a stream or of a single adapter with the same model, method and settings."""
        self.adapter.restore(path)

    def listen(self, handler: EventHandler) -> None:
        """Call a function with each event of this stream."""
        self.add_callback(Listener(handler))

    @synchronized
    def add_callback(self, callback: Callback) -> None:
        """Call a callback's hooks around each learning step of this stream, also after it was on disk."""
        member = self.fleet.roster.enter(self.name)
        member.here.add_callback(callback)
        member.callbacks.append(callback)

    def __repr__(self) -> str:
        return f"<stream {self.name!r}>"
