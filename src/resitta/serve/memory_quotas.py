"""Fair shares of the memory: how many of the samples that an update learns from may belong to one client."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from resitta.memory.memory import Memory

PROTECTED = 1000
"""For how many further samples of the stream a client keeps a slot against clients that have more."""
NOBODY = -1


class Shares:
    """The quota of a memory that several clients fill; clients are identified by numbers.

    Free slots are taken in order of arrival. In a full memory a client takes the slot that the memory has chosen if it
    belongs to itself or to a client that has more. Otherwise, and if the memory rejects its sample, it takes a slot
    from the client with the most as long as it has fewer, or else replaces one of its own. So k clients end with about
    1/k of the memory each, and of the statistics and gradients computed from it, however fast each of them sends and
    however certain the network is of its images. With a single client, the memory decides as without a quota.

    Owners are recognised by slot and birth. In a memory that was rolled back or replaced, unrecognised samples belong
    to nobody, and any client may replace them.

    >>> import torch
    >>> from resitta.memory.entrobank import EntroBank
    >>> bank, shares = EntroBank(4, generator=torch.Generator()), Shares()
    >>> for client, entropies in ((1, [0.5] * 6), (2, [0.4] * 2), (1, [0.1] * 9)):
    ...     shares.begin(bank, [client] * len(entropies))
    ...     bank.add(torch.rand(len(entropies), 3, 4, 4), np.zeros(len(entropies), int), np.array(entropies))
    >>> shares.held == {1: 2, 2: 2}, sorted(bank.entropies.tolist())
    (True, [0.1, 0.1, 0.4, 0.4])
    """

    def __init__(self) -> None:
        self.memory: Memory | None = None
        self.held: Counter[int] = Counter()
        self._owners = np.zeros(0, dtype=np.int64)
        self._births = np.zeros(0, dtype=np.int64)
        self._batch: Sequence[int] = ()

    def begin(self, memory: Memory, clients: Sequence[int]) -> None:
        """Prepare for a batch of samples of these clients, and find out who owns the samples in the memory."""
        if memory is not self.memory or len(self._owners) != memory.capacity:
            self._owners, self._births = np.full(memory.capacity, NOBODY), np.zeros(memory.capacity, dtype=np.int64)
        self.memory, self._batch = memory, clients
        known = self._births[: memory.size] == memory.births[: memory.size]
        self._owners[: memory.size][~known] = NOBODY
        self._owners[memory.size :] = NOBODY
        self.held = Counter(self._owners[: memory.size][known].tolist())
        del self.held[NOBODY]
        memory.quota = self.slot

    def end(self) -> None:
        """Remove the quota."""
        if self.memory is not None:
            self.memory.quota = None

    def slot(self, chosen: int | None, place: int) -> int | None:
        """The slot for a sample: the one that the memory has chosen, if any, or another one."""
        memory, client = self.memory, self._batch[place]
        assert memory is not None  # begin came first
        slot = chosen if chosen is not None and self._may_take(memory, chosen, client) else None
        if slot is None:
            slot = self._other(memory, client, renew=chosen is not None)
        if slot is not None:
            self._give(memory, slot, client)
        return slot

    def _may_take(self, memory: Memory, slot: int, client: int) -> bool:
        if slot >= memory.size:
            return True
        owner, birth = int(self._owners[slot]), int(memory.births[slot])
        known = birth == self._births[slot]  # a method may rearrange its memory in the middle of a step
        protected = known and memory.clock - birth < PROTECTED and owner not in (NOBODY, client)
        return not protected or self.held[client] < self.held[owner]

    def _other(self, memory: Memory, client: int, *, renew: bool) -> int | None:
        """A slot of the client with the most, if that is at least two more; else one of its own, if it may renew."""
        largest, most = max(self.held.items(), key=lambda item: item[1], default=(client, 0))
        if self.held[client] + 1 < most:
            return self._oldest(memory, largest)
        return self._oldest(memory, client) if renew else None

    def _oldest(self, memory: Memory, client: int) -> int | None:
        """The oldest sample of the client's largest class, so that its classes stay balanced."""
        births = memory.births[: memory.size]
        slots = np.flatnonzero((self._owners[: memory.size] == client) & (self._births[: memory.size] == births))
        if not len(slots):
            return None
        largest = slots[memory.labels[slots] == np.bincount(memory.labels[slots]).argmax()]
        return int(largest[births[largest].argmin()])

    def _give(self, memory: Memory, slot: int, client: int) -> None:
        owner = int(self._owners[slot])
        if owner != NOBODY:
            self.held[owner] -= 1
        self.held[client] += 1
        self._owners[slot], self._births[slot] = client, memory.clock
