"""The sweep that the tests of executors share."""

from tests.bench.conftest import jobs, measured, sweep  # noqa: F401
