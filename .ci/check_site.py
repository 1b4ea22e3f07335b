"""Check that a built site asks other hosts for nothing: `check_site.py FOLDER` exits with 1 and names what does."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}
LINKS = {"stylesheet", "preconnect", "dns-prefetch", "preload", "icon", "manifest", "modulepreload"}
REMOTE = re.compile(r"^(?:https?:)?//")
IN_CSS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class Finder(HTMLParser):
    """Collects what a browser would load from other hosts when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at one element."""
        given = {name: value or "" for name, value in attrs}
        address = given.get(LOADS.get(tag, ""), "")
        if tag == "link" and LINKS & set(given.get("rel", "").split()):
            address = given.get("href", "")
        addresses = [address, *(part.split()[0] for part in given.get("srcset", "").split(",") if part.strip())]
        self.found += [address for address in addresses if REMOTE.match(address)]
        self.found += IN_CSS.findall(given.get("style", ""))


def remote(path: Path) -> list[str]:
    """The addresses of other hosts that a file of the site makes a browser ask."""
    text = path.read_text("utf-8")
    if path.suffix == ".html":
        finder = Finder()
        finder.feed(text)
        return finder.found + IN_CSS.findall(text)
    return IN_CSS.findall(text)


def main() -> int:
    """Look at every page, style sheet and drawing."""
    files = [path for path in sorted(Path(sys.argv[1]).rglob("*")) if path.suffix in (".html", ".css", ".svg")]
    found = [f"{path}: {address}" for path in files for address in remote(path)]
    print("\n".join(found) or f"{len(files)} files ask other hosts for nothing")
    return int(bool(found) or not files)


if __name__ == "__main__":
    sys.exit(main())
