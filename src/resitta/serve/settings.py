"""The limits of a service in one frozen record."""

from dataclasses import dataclass
from typing import Literal

from resitta.settings import check_settings, setting

Resize = Literal["crop", "stretch"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on requests, queues and times.

    >>> Limits(max_images=0)
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: max_images must be >= 1, found 0; its default is 64

    Args:
        max_body: Bytes of one request.
        max_bodies: Bytes of all requests in progress together; further ones are answered with 429.
        max_images: Images of one request.
        max_pixels: Pixels of one request, all its images together, before they are resized.
        queue: Images that may wait for their prediction; further requests are answered with 429.
        learn_queue: Images that may wait to be learned from; further ones are predicted, and counted as dropped.
        batch: Images that are predicted at once.
        learn_batch: Images that are learned from at once; fewer when they come slowly.
        wait_ms: How long a prediction may wait for others to share its batch.
        body_timeout: Seconds for a client to send its request.
        answer_timeout: Seconds for a prediction, from the request's head to the answer, all waiting included.
        decode_seconds: Processor time for decoding the images of one request.
        decode_memory: Bytes for decoding one image.
        connections: Concurrent connections; beyond these an idle one of the client with the most is closed.
        client_connections: Concurrent connections of one client address.
        save_every: Seconds between snapshots while the state changes.
        keep: Snapshots to keep.
        proxies: Trusted proxies in front of the service, which append a client's address to X-Forwarded-For.
        clients: Clients tracked for learning; beyond these the least recently active one is removed.
        streams: With --fleet, streams of clients without the token that are kept, in memory and in the folder: beyond
            these, the client with the most of them loses the one that it has not used for longest. Without, streams
            (header X-Stream) whose label prior is remembered, with label_prior=temporal.
    """

    max_body: int = setting(32 * 2**20, at_least=1)
    max_bodies: int = setting(256 * 2**20, at_least=1)
    max_images: int = setting(64, at_least=1)
    max_pixels: int = setting(40_000_000, at_least=1)
    queue: int = setting(256, at_least=1)
    learn_queue: int = setting(512, at_least=1)
    batch: int = setting(32, at_least=1)
    learn_batch: int = setting(64, at_least=1)
    wait_ms: float = setting(2.0, at_least=0)
    body_timeout: float = setting(10.0, above=0)
    answer_timeout: float = setting(30.0, above=0)
    decode_seconds: float = setting(5.0, above=0)
    decode_memory: int = setting(2**29, at_least=2**20)
    connections: int = setting(1000, at_least=1)
    client_connections: int = setting(128, at_least=1)
    save_every: float = setting(60.0, above=0)
    keep: int = setting(10, at_least=1)
    proxies: int = setting(0, at_least=0)
    clients: int = setting(1000, at_least=1)
    streams: int = setting(256, at_least=1)

    def __post_init__(self) -> None:
        check_settings(self)
