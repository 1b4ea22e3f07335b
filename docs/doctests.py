"""An extension of griffe: doctests anywhere in a docstring become code blocks of the API reference."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=^\s*$|\Z)", flags=re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Fences every doctest; Markdown would read `>>>` as a quotation."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
