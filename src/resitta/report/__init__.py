"""Records made readable: tables, figures, one self-contained page."""
