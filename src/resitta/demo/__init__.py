"""The demo: methods compared on real photographs, or on handwritten digits, under corruption."""
