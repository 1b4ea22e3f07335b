"""Who may change the state: those who hold the token. And no page from elsewhere may use a visitor's browser."""

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from resitta.errors import BadSetting
from resitta.serve.refused import Refused

SHORTEST = 16
LOOPBACK = ("localhost", "127.0.0.1", "::1")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def find_token(file: Path | None) -> str | None:
    """The token of a file, else of $RESITTA_TOKEN; None where neither is given."""
    try:
        found = os.environ.get("RESITTA_TOKEN") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"the token cannot be read from {file} ({error})") from error
    token = None if found is None else found.strip()
    if token is not None and len(token) < SHORTEST:
        raise BadSetting(f"the token must have at least {SHORTEST} characters, found {len(token)}; make a longer one")
    return token


def new_token() -> str:
    """A token that cannot be guessed.

    >>> len(new_token()) >= SHORTEST
    True
    """
    return secrets.token_urlsafe(24)


def same(found: str, token: str) -> bool:
    """Compare in a time that does not depend on where the two differ.

    >>> same("secret", "secret"), same("", "secret")
    (True, False)
    """
    return hmac.compare_digest(found.encode(), token.encode())


def token_holder(token: str) -> Callable[[Credentials], Awaitable[None]]:
    """A dependency for routes that only holders of the token may use."""

    async def check(credentials: Credentials) -> None:
        if credentials is None or not same(credentials.credentials, token):
            found = "no token" if credentials is None else "another one"
            raise Refused(401, f"this needs the service's token, found {found}; send Authorization: Bearer TOKEN")

    return check


def names_of(host: str, others: Collection[str] = ()) -> frozenset[str] | None:
    """The names that a service on a host answers to: on this machine's own address only that and those given.

    A page from elsewhere may let its own name point to this machine, and a browser then takes the service for a part
    of that page. None stands for any name.

    >>> sorted(names_of("127.0.0.1")), names_of("0.0.0.0")
    (['127.0.0.1', '::1', 'localhost'], None)
    """
    local = host in LOOPBACK or host.startswith("127.")
    return frozenset((*LOOPBACK, host, *map(str.lower, others))) if local or others else None


def name_checker(names: Collection[str] | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency for routes that answer to these names only."""

    async def check(request: Request) -> None:
        called = request.headers.get("host")  # browsers always send it
        if names is not None and called is not None and _host_of(called) not in names:
            known = ", ".join(sorted(names))
            raise Refused(421, f"this service answers to {known}, found {called[:100]!r}; --allow-host adds a name")

    return check


def _host_of(address: str) -> str | None:
    """The name in front of a port, or None where there is none to be found.

    >>> _host_of("Localhost:8000"), _host_of("[::1]:8000"), _host_of("[::1")
    ('localhost', '::1', None)
    """
    try:
        return urlsplit(f"//{address}").hostname
    except ValueError:
        return None


async def check_site(request: Request) -> None:
    """Refuse what a browser sends on behalf of another site's page."""
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.method != "GET":
        raise Refused(403, "pages of other sites may not use this service; call it from outside a browser")
