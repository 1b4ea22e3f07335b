"""Identify the client behind a request by a short key, for quotas and fair queues.

The key is that of the service's token if the client sends it, else of its address. Other tokens are ignored: a client
that invents a new one for every request must not become a new client each time.
"""

import hashlib
import ipaddress

from fastapi import Request

from resitta.serve.security import host_name, same

PREFIX = 64
"""Bits of an IPv6 address that identify a client: one host owns all addresses of its /64 network."""


def client_of(request: Request) -> str:
    """Return the key of the client behind a request.

    Reads the service's `token` and `limits` from the application's state. `X-Forwarded-For` counts only behind trusted
    proxies, since any client can send it.
    """
    state = request.app.state
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and same(sent.strip(), state.token):
        return f"token:{hashlib.sha256(state.token.encode()).hexdigest()[:12]}"
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
