"""Normalisation layers that keep statistics of their own."""
