"""What every test and doctest may rely on, wherever the suite is started."""

import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

SERVICE = ("fastapi", "uvicorn", "prometheus_client", "httpx", "websockets")
OF_THE_SERVICE = ["src/resitta/serve", "tests/serve", "tests/cli/test_serve.py"]
OF_TRITON = ["src/resitta/accel/temporal_scan.py", "src/resitta/training/device_filter.py"]
collect_ignore = [] if all(map(find_spec, SERVICE)) else OF_THE_SERVICE
collect_ignore += [] if find_spec("triton") else OF_TRITON
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr for the watchdog; during a test it is captured."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)


def pytest_collection_finish() -> None:
    """Leave the collected tests and modules out of garbage collections, which would take 0.2 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also under `nohup` and in background jobs, which ignore it.

    Processes that a test starts get the default action: exec() keeps an ignored signal, but resets a handled one.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


STDERR = pytest.StashKey[int]()


# pytest-timeout fails a test that waits in Python, and the suite goes on. It cannot end a call into C that never
# returns, or a thread that outlives the tests: for these the watchdog prints all stacks and ends the process.
def watch(config: pytest.Config, item: pytest.Item | None = None) -> None:
    marker = item and item.get_closest_marker("timeout")
    asked = marker.args[0] if marker and marker.args else config.getoption("timeout", None)
    limit = float(config.getini("timeout") if asked is None else asked)
    faulthandler.cancel_dump_traceback_later()
    if limit > 0:  # zero: none, as for pytest-timeout
        faulthandler.dump_traceback_later(1.5 * limit, exit=True, file=config.stash[STDERR])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    watch(item.config, item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    watch(item.config, item)


def pytest_sessionfinish(session: pytest.Session) -> None:
    watch(session.config)
