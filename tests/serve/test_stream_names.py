from pathlib import Path

import pytest

from resitta.fleets.files import check_name
from resitta.serve.http_errors import Refused
from resitta.serve.stream_names import StreamNames, stream_name


def test_pseudonyms_last_as_long_as_the_folder_and_hide_the_address(tmp_path: Path) -> None:
    first, again = (StreamNames.of_folder(tmp_path / "one") for _ in range(2))
    other = StreamNames.of_folder(tmp_path / "two")
    assert first.of("192.0.2.7", "gate") == again.of("192.0.2.7", "gate") != other.of("192.0.2.7", "gate")


@pytest.mark.parametrize("client", ["192.0.2.7", "token:0123"])
def test_the_longest_name_that_a_request_may_give_names_a_file(client: str) -> None:
    for name in ("A" * 64, ":" * 64):
        assert check_name(StreamNames(b"key").of(client, stream_name(name)))


def test_no_name_that_a_client_gives_is_that_of_another_client() -> None:
    names = StreamNames(b"key")
    theirs = names.of("192.0.2.7", "gate")
    with pytest.raises(Refused):
        stream_name(theirs)
    clients = ("192.0.2.7", "192.0.2.8", "2001:db8::/64", "unknown", "", "token:0")
    assert len({names.of(client, name) for client in clients for name in ("", "gate")}) == 12
