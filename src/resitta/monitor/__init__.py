"""Callbacks, events, statistics and guards of an adapter."""
