"""Who sends a request: the token of the admin routes, client keys, cross-site requests, and the host allow-list.

A client's key, for quotas and fair queues, is that of the service's token if it sends it, else of its address. Other
tokens are ignored: a client that invents a new one for every request must not become a new client each time.
"""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from resitta.errors import BadSetting
from resitta.serve.http_errors import Refused
from resitta.serve.metrics import ServiceMetrics

SHORTEST = 16
PORTS = {"http": 80, "https": 443}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
TOKEN_KEY = "token:"
"""How the key of the client begins that sends the service's token."""
PREFIX = 64
"""Bits of an IPv6 address that identify a client: one host owns all addresses of its /64 network."""
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def find_token(file: Path | None) -> str | None:
    """Read the token from a file, else from $RESITTA_TOKEN; None if neither is given."""
    try:
        found = os.environ.get("RESITTA_TOKEN") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"the token cannot be read from {file} ({error})") from error
    token = None if found is None else found.strip()
    if token is not None and len(token) < SHORTEST:
        raise BadSetting(f"the token must have at least {SHORTEST} characters, found {len(token)}; make a longer one")
    return token


def same(found: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(found.encode(), token.encode())


def require_token(token: str) -> Callable[[Credentials], Awaitable[None]]:
    """Return a dependency that refuses requests without the token."""

    async def check(credentials: Credentials) -> None:
        if credentials is None or not same(credentials.credentials, token):
            found = "no token" if credentials is None else "another one"
            raise Refused(401, f"this needs the service's token, found {found}; send Authorization: Bearer TOKEN")

    return check


def client_of(request: Request) -> str:
    """Return the key of the client behind a request.

    Reads the service's `token` and `limits` from the application's state. `X-Forwarded-For` counts only behind trusted
    proxies, since any client can send it.
    """
    state = request.app.state
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and same(sent.strip(), state.token):
        return f"{TOKEN_KEY}{hashlib.sha256(state.token.encode()).hexdigest()[:12]}"
    peer = request.client.host if request.client else ""
    return address_key(_forwarded(request, state.limits.proxies) or peer)


def address_key(address: str) -> str:
    """Return the key of an address: IPv4 unchanged, IPv6 as its /64 network.

    >>> address_key("192.0.2.7"), address_key("::ffff:192.0.2.7"), address_key("2001:db8::1:2:3:4%eth0")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, PREFIX), strict=False))


def _forwarded(request: Request, proxies: int) -> str | None:
    """Return the address seen by the outermost trusted proxy; each proxy appends one to the list."""
    if not proxies:
        return None
    listed = [part.strip() for line in request.headers.getlist("x-forwarded-for") for part in line.split(",")]
    found = host_name(listed[-proxies]) if len(listed) >= proxies else None
    return found if found and address_key(found) != "unknown" else None


async def check_site(request: Request) -> None:
    """Refuse cross-site requests, which a browser sends on behalf of another site's page (CSRF).

    Browsers declare them in Sec-Fetch-Site, but over plain HTTP only to local addresses; elsewhere, and in older
    browsers, Origin names the page's site. Programs send neither header.
    """
    if request.method in ("GET", "HEAD"):
        return
    site, host = request.headers.get("sec-fetch-site"), request.headers.get("host", "")
    own = all(is_own(origin, host) for origin in request.headers.getlist("origin"))
    if not (own if site is None else site in ("same-origin", "none")):
        raise Refused(403, "pages of other sites may not use this service; call it from outside a browser")


def is_own(origin: str, host: str) -> bool:
    """Return whether a page's origin is the host it calls; the opaque origin "null" never is.

    >>> is_own("http://box:8000", "Box:8000"), is_own("https://box", "box:443"), is_own("http://box:81", "box")
    (True, True, False)
    """
    try:
        page, called = urlsplit(origin), urlsplit(f"//{host}")
        port = PORTS[page.scheme]
        found, own = (page.hostname, page.port or port), (called.hostname, called.port or port)
    except (ValueError, KeyError):
        return False
    return found == own and page.hostname is not None


class AllowedHosts:
    """Host allow-list against DNS rebinding: a site whose name resolves to this machine cannot read the service.

    Not Starlette's `TrustedHostMiddleware`: that answers in plain text without counting, redirects to www names, and
    in releases that the extra `serve` allows takes "[::1]:8000" for the host "[".
    """

    def __init__(self, app: ASGIApp, names: Collection[str], metrics: ServiceMetrics) -> None:
        self.app = app
        self.names = names
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its Host header is in the list or absent, as no browser omits it."""
        called = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if called is None or host_name(called) in self.names:
            await self.app(scope, receive, send)
            return
        self.metrics.refusals.labels(status="421").inc()
        known = ", ".join(sorted(self.names))
        sentence = f"this service answers to {known}, found {called[:100]!r}; --allow-host adds a name"
        await JSONResponse({"error": sentence}, 421)(scope, receive, send)


def allowed_names(address: str, host: str, others: Collection[str] = ()) -> frozenset[str] | None:
    """Return the allow-list of a service that listens on `address`, resolved from `host`; None means any name.

    >>> sorted(allowed_names("127.0.0.1", "localhost")), allowed_names("0.0.0.0", "0.0.0.0")
    (['127.0.0.1', '::1', 'localhost'], None)
    """
    if not others and not is_loopback(address):
        return None
    found = map(host_name, (*LOCAL, address, host, *others))
    return frozenset(name for name in found if name is not None)


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches a numeric address.

    >>> is_loopback("127.0.0.9"), is_loopback("::ffff:127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def host_name(address: str) -> str | None:
    """Return the name or IP address in front of a port, or None if it cannot be parsed.

    >>> host_name("Localhost:8000"), host_name("[::1]:8000"), host_name("::1"), host_name("[::1")
    ('localhost', '::1', '::1', None)
    """
    bare = address.count(":") > 1 and not address.startswith("[")
    try:
        return urlsplit(f"//[{address}]" if bare else f"//{address}").hostname
    except ValueError:
        return None
