"""Text for LaTeX."""

import unicodedata


def latex_escape(text: str) -> str:
    r"""Make any text safe in LaTeX, for pdflatex with no packages.

    >>> print(latex_escape("50 % of a_b & c\\d, η → 1"))
    50 \% of a\_b \& c\textbackslash{}d, $\eta$ $\rightarrow$ 1
    """
    return "".join(_LATEX.get(character) or _beyond_ascii(character) for character in text)


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},  # other glyphs in the default encoding
    **{"±": "$\\pm$", "→": "$\\rightarrow$", "−": "$-$", "×": "$\\times$", "·": "$\\cdot$"},
    **{"\n": " ", "\r": " ", "\t": " "},
}


def _beyond_ascii(character: str) -> str:
    """Letters of Latin-1 as they are, small Greek ones as formulas; of others the plain form or the code point."""
    if character.isascii() or ("À" <= character <= "ÿ"):
        return character
    _, greek, letter = unicodedata.name(character, "").partition("GREEK SMALL LETTER ")
    if greek and letter.isalpha() and letter not in ("OMICRON", "FINAL SIGMA"):
        return f"$\\{letter.lower().replace('lamda', 'lambda')}$"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or f"U+{ord(character):04X}"
