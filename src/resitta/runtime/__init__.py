"""Threads, locks and the hand-off of weights."""
