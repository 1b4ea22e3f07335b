"""Who may change the state: those who hold the token. And no page from elsewhere may use a visitor's browser."""

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from resitta.errors import BadSetting
from resitta.serve.http_errors import Refused

SHORTEST = 16
PORTS = {"http": 80, "https": 443}
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


async def check_site(request: Request) -> None:
    """Refuse what a browser sends on behalf of another site's page.

    Browsers say so in Sec-Fetch-Site, but not to plain HTTP on other addresses than the local one; there, and in older
    browsers, Origin tells where the page comes from. Programs send neither.
    """
    if request.method in ("GET", "HEAD"):
        return
    site, host = request.headers.get("sec-fetch-site"), request.headers.get("host", "")
    own = all(is_own(origin, host) for origin in request.headers.getlist("origin"))
    if not (own if site is None else site in ("same-origin", "none")):
        raise Refused(403, "pages of other sites may not use this service; call it from outside a browser")


def is_own(origin: str, host: str) -> bool:
    """Whether a page comes from the address that it calls; an unknown origin, "null", does not.

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
