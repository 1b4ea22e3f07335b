"""Runs: a frozen protocol, the loop, the record it writes."""
