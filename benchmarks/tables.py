"""Write the tables of README.md and docs/ from the records, between markers, or check that they are up to date.

    python benchmarks/tables.py            # rewrite what differs
    python benchmarks/tables.py --check    # exit status 1 if a page differs from the records

A page asks for a table with `<!-- table: NAME -->` … `<!-- /table -->` and for a file of the repository, as a code
block, with `<!-- file: PATH -->` … `<!-- /file -->`; for one number in a sentence with `<!-- value: NAME -->` …
`<!-- /value -->`. No number of a record is typed by hand.
"""

import argparse
import re
import sys
from pathlib import Path

import table_errors
import table_matrix
import table_regret
import table_rivals
import table_robustness
import table_shadow
import table_speed
import table_tide
from table_tools import ROOT, TABLES, VALUES, shown

MARKER = re.compile(r"<!-- (table|file): (\S+) -->\n.*?<!-- /\1 -->", flags=re.DOTALL)
INLINE = re.compile(
    r"<!-- value: (\S+) -->.*?<!-- /value -->"
)  # never first on a line: Markdown would end the paragraph
SOURCES = (
    table_errors,
    table_speed,
    table_robustness,
    table_matrix,
    table_regret,
    table_rivals,
    table_shadow,
    table_tide,
)
"""Importing a module adds its tables to `TABLES` and its numbers to `VALUES`."""


def rendered(kind: str, name: str) -> str:
    """What belongs between the markers."""
    if kind == "file":
        return (
            f"```{Path(name).suffix.removeprefix('.').replace('py', 'python')}\n{(ROOT / name).read_text('utf-8')}```"
        )
    if name not in TABLES:
        sys.exit(f"no table is called {name!r}; there are {', '.join(sorted(TABLES))}")
    return TABLES[name]()


def pages() -> list[Path]:
    """Every page that may hold markers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with all of its tables as the records have them."""

    def fill(match: re.Match[str]) -> str:
        kind, name = match.groups()
        inner = rendered(kind, name)
        gap = "" if kind == "file" else "\n"  # Markdown reads a table only after an empty line
        return f"<!-- {kind}: {name} -->\n{gap}{inner}\n{gap}<!-- /{kind} -->"

    def number(match: re.Match[str]) -> str:
        if match[1] not in VALUES:
            sys.exit(f"no value is called {match[1]!r}; there are {', '.join(sorted(VALUES))}")
        return f"<!-- value: {match[1]} -->{shown(VALUES[match[1]]())}<!-- /value -->"

    return INLINE.sub(number, MARKER.sub(fill, text))


def main() -> int:
    """Rewrite the pages, or only compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page differs")
    check = parser.parse_args().check
    wrong, used = [], set()
    for page in pages():
        text = page.read_text("utf-8")
        used |= {name for kind, name in MARKER.findall(text) if kind == "table"} | set(INLINE.findall(text))
        fresh = filled(text)
        if fresh != text:
            wrong.append(page)
            if not check:
                page.write_text(fresh, encoding="utf-8")
    for page in wrong:
        print(f"{page.relative_to(ROOT)} {'differs from the records' if check else 'was rewritten'}")
    unused = sorted({*TABLES, *VALUES} - used)
    for name in unused:
        print(f"{name} is on no page")
    if check and wrong:
        print("run: python benchmarks/tables.py")
    return int(bool(unused or (check and wrong)))


if __name__ == "__main__":
    sys.exit(main())
