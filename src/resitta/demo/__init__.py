"""The demo: real handwritten digits under corruption, with a small network trained on the spot."""
