"""Adapters on disk: one self-verifying file, written atomically."""
