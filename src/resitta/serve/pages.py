"""The files a browser sees: the live page and the page about the interface. They load nothing from elsewhere."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Response

FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/docs.js": ("docs.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_pages(app: FastAPI) -> None:
    """Serve every file from memory."""
    for path, (name, kind) in FILES.items():
        content = files("resitta.serve").joinpath("page", name).read_bytes()
        app.add_api_route(path, _page(content, kind), include_in_schema=False)


def _page(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return page
