"""Faster and smaller versions of plain paths, which stay beside them."""
