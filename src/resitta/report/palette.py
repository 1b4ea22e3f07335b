"""One colour per method, the same in every figure of a page, distinguishable with colour blindness.

Any two of them differ by a CIE76 ΔE of 15 or more, also as people with protanopia, deuteranopia or tritanopia see them.
Colours are CSS variables, so that a page can give lighter ones on a dark ground; the fallback serves a lone figure.
"""

from collections.abc import Sequence

from resitta.errors import UnknownName, near
from resitta.report.groups import Group
from resitta.report.identity import title_of

ACCENT = "var(--accent, #c2410c)"
NEUTRAL = "var(--neutral, #74777d)"
_OTHERS = {
    "bn": "var(--c1, #14336f)",
    "pl": "var(--c2, #8f7b3c)",
    "tent": "var(--c3, #a44bc8)",
    "lame": "var(--c4, #1d6b45)",
    "cotta": "var(--c5, #0d86ad)",
    "note": "var(--c6, #541542)",
    "rotta": "var(--c7, #1c46dc)",
}

_CLASSES = (
    ("--k0", "#323c60"),
    ("--k1", "#a39110"),
    ("--k2", "#aa1305"),
    ("--k3", "#b448fe"),
    ("--k4", "#27a65c"),
    ("--k5", "#2001f9"),
    ("--k6", "#728f8d"),
    ("--k7", "#d762d1"),
    ("--k8", "#771f2b"),
    ("--k9", "#5b1494"),
)


def class_colour(label: int) -> str:
    """Return the colour of a class. Any two of the ten differ by a ΔE of 23 or more, measured as for methods.

    >>> class_colour(3), class_colour(13)
    ('var(--k3, #b448fe)', 'var(--k3, #b448fe)')
    """
    return "var({}, {})".format(*_CLASSES[label % len(_CLASSES)])


def hero(groups: Sequence[Group], highlight: str = "") -> Group:
    """Return the group a report is about: the best one called `highlight`, else ResiTTA, else the best that adapts.

    `highlight` is the label of a row or the name or title of a method, in any case of letters.
    """
    if highlight:
        found = called(groups, highlight)
        if not found:
            raise UnknownName(f"no row is called {highlight!r}. {near(highlight, [g.label for g in groups])}")
        return min(found, key=lambda group: group.average)
    ours = [group for group in groups if group.method == "resitta"]
    adapting = [group for group in groups if group.method != "source"] or list(groups)
    return min(ours or adapting, key=lambda group: group.average)


def called(groups: Sequence[Group], name: str) -> list[Group]:
    """Return the groups with this label or, if there is none, of the method with this name or title."""
    exact = [group for group in groups if name.lower() == group.label.lower()]
    names = [(group, (group.method.lower(), title_of(group.runs[0]).lower())) for group in groups]
    return exact or [group for group, known in names if name.lower() in known]


def colours(groups: Sequence[Group], ours: Group | None = None) -> dict[str, str]:
    """Return each group's colour by its label: the accent for the hero, grey for the source, fixed ones for methods.

    Groups of other methods take the colours that are left, then start over.
    """
    chosen = {(ours or hero(groups)).label: ACCENT}
    for group in groups:
        free = [colour for colour in _OTHERS.values() if colour not in chosen.values()] or list(_OTHERS.values())
        known = NEUTRAL if group.method == "source" else _OTHERS.get(group.method)
        chosen.setdefault(group.label, known if known and known not in chosen.values() else free[0])
    return chosen
