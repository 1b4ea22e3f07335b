"""The names a service answers to.

A page from elsewhere may let its own name point to this machine, and a browser then takes the service for a part of
that page. So a service on this machine's own address answers to that and localhost only, and to names it is given.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from resitta.serve.metrics import Metrics

LOCAL = ("localhost", "127.0.0.1", "[::1]")


def names_of(address: str, host: str, others: Collection[str] = ()) -> frozenset[str] | None:
    """The names for a service that listens on an address, which was asked for as `host`; None stands for any name.

    >>> sorted(names_of("127.0.0.1", "localhost")), names_of("0.0.0.0", "0.0.0.0")
    (['127.0.0.1', '::1', 'localhost'], None)
    """
    if not others and not is_local(address):
        return None
    found = map(name_in, (*LOCAL, address, host, *others))
    return frozenset(name for name in found if name is not None)


def is_local(address: str) -> bool:
    """Whether only this machine reaches a numeric address.

    >>> is_local("127.0.0.9"), is_local("::ffff:127.0.0.1"), is_local("0.0.0.0")
    (True, True, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def name_in(address: str) -> str | None:
    """The name or number in front of a port, or None where there is none to be found.

    >>> name_in("Localhost:8000"), name_in("[::1]:8000"), name_in("::1"), name_in("[::1")
    ('localhost', '::1', '::1', None)
    """
    bare = address.count(":") > 1 and not address.startswith("[")
    try:
        return urlsplit(f"//[{address}]" if bare else f"//{address}").hostname
    except ValueError:
        return None


class AllowedHosts:
    """Passes on what calls the service by one of its names, and refuses the rest."""

    def __init__(self, app: ASGIApp, names: Collection[str], metrics: Metrics) -> None:
        self.app = app
        self.names = names
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        called = Headers(scope=scope).get("host") if scope["type"] == "http" else None  # browsers always send it
        if called is None or name_in(called) in self.names:
            await self.app(scope, receive, send)
            return
        self.metrics.refusals.labels(status="421").inc()
        known = ", ".join(sorted(self.names))
        sentence = f"this service answers to {known}, found {called[:100]!r}; --allow-host adds a name"
        await JSONResponse({"error": sentence}, 421)(scope, receive, send)
