"""`with adapter.paused()`: predict without learning, and go on learning afterwards however the block ends."""

from weakref import WeakSet

from resitta.method import AdapterLike
from resitta.runtime.locks import defer_signals


class Pause:
    """One such block: the adapter pauses while any of these is in `adapter.pauses`.

    A set and no counter, since adding to it and taking from it may be repeated; and a weak one, so that a pause whose
    end was interrupted ends with its object. So no exception of a signal's handler, wherever it strikes, leaves an
    adapter paused for ever.
    """

    def __init__(self, adapter: AdapterLike) -> None:
        self.adapter = adapter

    def __enter__(self) -> AdapterLike:
        try:
            self.adapter.pauses.add(self)
            with defer_signals(), self.adapter.lock:  # a step under way in another thread ends first
                return self.adapter
        except BaseException:
            self._end()
            raise

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        self.adapter.pauses.discard(self)


Pauses = WeakSet[Pause]
