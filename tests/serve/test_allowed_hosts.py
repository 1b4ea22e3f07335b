import socket

import pytest

from resitta.serve.allowed_hosts import name_in, names_of
from resitta.serve.server import listen


@pytest.mark.parametrize(
    ("host", "others", "called", "answered"),
    [
        ("127.0.0.1", [], "localhost", True),
        ("localhost", [], "127.0.0.1:8000", True),
        ("Localhost", [], "elsewhere.example", False),
        ("127.0.0.9", [], "127.0.0.9:8000", True),
        ("127.0.0.9", [], "elsewhere.example", False),
        ("127.0.0.1", [], "elsewhere.example", False),
        ("127.0.0.1", [], "localhost.elsewhere.example", False),
        ("2130706433", [], "elsewhere.example", False),
        ("127.0.0.1", ["Proxy.example"], "proxy.EXAMPLE:443", True),
        ("127.0.0.1", ["proxy.example:443"], "proxy.example", True),
        ("127.0.0.1", ["[fe80::1]"], "[fe80::1]:443", True),
        ("0.0.0.0", [], "anything.example", True),
        ("0.0.0.0", ["proxy.example"], "anything.example", False),
        ("0.0.0.0", ["proxy.example"], "proxy.example", True),
    ],
)
def test_names_that_a_service_answers_to(host: str, others: list[str], called: str, answered: bool) -> None:
    with listen(host, 0) as on:
        names = names_of(on.getsockname()[0], host, others)
    assert (names is None or name_in(called) in names) == answered


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("address", ["::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_names_on_the_sixth_version(address: str) -> None:
    names = names_of(address, address)
    assert names is not None
    assert {"localhost", "::1"} <= names
    assert "elsewhere.example" not in names


def test_another_name_of_the_machine_is_its_own_if_names_are_given() -> None:
    names = names_of("10.0.0.7", "MyBox.lan", ["proxy.example"])
    assert names is not None
    assert {"mybox.lan", "10.0.0.7", "proxy.example"} <= names
