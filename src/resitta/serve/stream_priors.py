"""Label priors of a service: one for each stream that a client names, since several streams are no stream."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resitta.method import Method
from resitta.training.label_prior import Lookahead, TemporalPrior

Stream = tuple[str, str]
"""A client and the name that it gave to its stream. Two clients never share one."""
Correct = Callable[[Tensor], Tensor]
"""From the logits of a batch to those that are answered."""


class StreamPriors:
    """Corrects the samples of each stream by those before them in the same stream; others stay as they are.

    At most `most` streams are remembered. Beyond these, the client with the most of them loses the one that it has not
    used for longest.

    >>> priors = StreamPriors(most=2)
    >>> logits = torch.randn(3, 5)
    >>> torch.equal(priors.correct(logits, [None, ("a", "left"), ("a", "right")]), logits)  # too early to tell
    True
    >>> priors.summary()
    {'streams': 2, 'samples': 2, 'corrected': 0, 'relabelled': 0, 'skipped': 0}
    """

    def __init__(self, *, most: int, lookahead: Lookahead = "none") -> None:
        self.most, self.lookahead = most, lookahead
        self._priors: OrderedDict[Stream, TemporalPrior] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, method: Method, *, most: int) -> "StreamPriors | None":
        """Those of a method's settings, if it has a label prior."""
        return cls(most=most, lookahead=method.lookahead) if method.label_prior == "temporal" else None

    def correct(self, logits: Tensor, streams: Sequence[Stream | None]) -> Tensor:
        """Return the corrected logits of samples, each of which belongs to a stream or to none; learn from them."""
        places: dict[Stream, list[int]] = {}
        for place, stream in enumerate(streams):
            if stream is not None:
                places.setdefault(stream, []).append(place)
        for stream, own in places.items():
            rows = torch.tensor(own, device=logits.device)
            logits = logits.index_copy(0, rows, self._of(stream)(logits[rows]))
        return logits

    def summary(self) -> dict[str, int]:
        """How many streams are remembered, and how much their priors intervene."""
        with self._lock:
            stats = [prior.stats for prior in self._priors.values()]
        names = "samples", "corrected", "relabelled", "skipped"
        return {"streams": len(stats), **{name: sum(getattr(each, name) for each in stats) for name in names}}

    def clear(self) -> None:
        """Forget all streams: the network has been replaced."""
        with self._lock:
            self._priors.clear()

    def _of(self, stream: Stream) -> TemporalPrior:
        with self._lock:
            if stream not in self._priors:
                if len(self._priors) >= self.most:
                    self._drop_one()
                self._priors[stream] = TemporalPrior(lookahead=self.lookahead)
            self._priors.move_to_end(stream)
            return self._priors[stream]

    def _drop_one(self) -> None:
        """A client that invents names must not displace the streams of others."""
        [(greedy, _)] = Counter(client for client, _ in self._priors).most_common(1)
        del self._priors[next(stream for stream in self._priors if stream[0] == greedy)]


def unchanged(logits: Tensor) -> Tensor:
    """Correct nothing."""
    return logits
