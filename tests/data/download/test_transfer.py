import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resitta.data.download.transfer import Patience, download
from resitta.errors import BadData

if TYPE_CHECKING:
    from tests.data.download.conftest import Server

BODY = bytes(range(256)) * 40
HASTY = Patience(attempts=3, pause=0.001, timeout=0.3)


@pytest.fixture
def part(tmp_path: Path, server: "Server") -> Path:
    server.body = BODY
    return tmp_path / "file.tar.part"


def ranges(server: "Server") -> list[str | None]:
    return [headers.get("Range") for headers in server.asked]


def test_downloads_and_reports_progress(server: "Server", part: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    download(server.url, part, progress=lambda done, total: seen.append((done, total)), patience=HASTY)
    assert part.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert ranges(server) == [None]


def test_length_unknown(server: "Server", part: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    server.script = ["no-length"]
    download(server.url, part, progress=lambda done, total: seen.append((done, total)), patience=HASTY)
    assert part.read_bytes() == BODY
    assert seen[-1] == (len(BODY), None)


def test_resumes_after_a_cut_with_the_version_it_saw(server: "Server", part: Path) -> None:
    server.script = ["cut"]
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY
    assert ranges(server) == [None, f"bytes={len(BODY) // 2}-"]
    assert server.asked[1]["If-Range"].startswith('"')


def test_resumes_what_an_earlier_call_left(server: "Server", part: Path) -> None:
    part.write_bytes(BODY[:100])
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY
    assert ranges(server) == ["bytes=100-"]


def test_a_complete_part_is_left_alone(server: "Server", part: Path) -> None:
    part.write_bytes(BODY)
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY


def test_starts_over_when_the_part_is_longer_than_the_file(server: "Server", part: Path) -> None:
    part.write_bytes(BODY + b"more")
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY
    assert ranges(server) == [f"bytes={len(BODY) + 4}-", None]


@pytest.mark.parametrize("word", ["no-range", "wrong-range"])
def test_starts_over_when_the_server_sends_another_range(server: "Server", part: Path, word: str) -> None:
    part.write_bytes(b"x" * 100)
    server.script = [word]
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY


def test_starts_over_when_the_file_changes_meanwhile(server: "Server", part: Path) -> None:
    server.script = ["cut"]

    def change(done: int, total: int | None) -> None:
        server.body = BODY[::-1]

    download(server.url, part, progress=change, patience=HASTY)
    assert part.read_bytes() == BODY[::-1]


def test_starts_over_when_only_the_size_tells_the_change(server: "Server", part: Path) -> None:
    server.script = ["cut", "blind"]

    def change(done: int, total: int | None) -> None:
        server.body = BODY[::-1] + b"longer"

    download(server.url, part, progress=change, patience=HASTY)
    assert part.read_bytes() == BODY[::-1] + b"longer"


def test_passing_errors_are_retried(server: "Server", part: Path) -> None:
    server.script = ["503", "500", "cut", "429", "silent"]
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY
    assert len(server.asked) == 6


def test_pauses_double(server: "Server", part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    server.script = ["503"] * 3
    download(server.url, part, patience=Patience(attempts=4, pause=1))
    assert pauses == [1, 2, 4]


def test_gives_up_in_the_end(server: "Server", part: Path) -> None:
    part.write_bytes(BODY[:7])
    server.script = ["500"] * 9
    with pytest.raises(BadData, match=r"500 Internal Server Error; 3 attempts in a row\); 7 bytes are kept"):
        download(server.url, part, patience=HASTY)
    assert len(server.asked) == 3


def test_missing_file_is_not_retried(server: "Server", part: Path) -> None:
    server.script = ["404"] * 9
    with pytest.raises(BadData, match="answered 404 Not Found; check the address"):
        download(server.url, part, patience=HASTY)
    assert len(server.asked) == 1


def test_a_web_page_is_not_the_file(server: "Server", part: Path) -> None:
    server.script = ["html"]
    with pytest.raises(BadData, match="is a web page, not the file"):
        download(server.url, part, patience=HASTY)
    assert not part.exists()


def test_a_silent_server_times_out(server: "Server", part: Path) -> None:
    server.script = ["silent"] * 2
    with pytest.raises(BadData, match="timed out; 2 attempts"):
        download(server.url, part, patience=Patience(attempts=2, pause=0.001, timeout=0.1))


def test_nobody_listens(server: "Server", part: Path) -> None:
    server.server_close()
    with pytest.raises(BadData, match="refused"):
        download(server.url, part, patience=HASTY)


def test_too_long_a_promise_is_settled_by_asking_again(server: "Server", part: Path) -> None:
    server.script = ["promise-more"]
    download(server.url, part, patience=HASTY)
    assert part.read_bytes() == BODY


def test_a_server_that_always_promises_too_much(server: "Server", part: Path) -> None:
    server.script = ["promise-more"] * 9
    with pytest.raises(BadData, match=f"ended after {len(BODY)} of {len(BODY) + 100} bytes"):
        download(server.url, part, patience=HASTY)


def test_too_small_a_disk(server: "Server", part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(part.parent)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=2 * len(BODY) - 1))
    with pytest.raises(BadData, match=r"needs 0.0 GB in .* make room"):
        download(server.url, part, patience=HASTY)
    assert not part.exists()


def test_a_file_that_says_it_is_too_large_is_not_begun(server: "Server", part: Path) -> None:
    with pytest.raises(BadData, match=f"gave {len(BODY):,} bytes or more, at most 5,000 were expected; check the addr"):
        download(server.url, part, patience=HASTY, most=5000)
    assert not part.exists()
    assert len(server.asked) == 1


@pytest.mark.parametrize("word", ["no-length", "endless"])
def test_a_file_without_a_length_is_cut_off(server: "Server", part: Path, word: str) -> None:
    server.script = [word]
    with pytest.raises(BadData, match="bytes or more, at most 5,000 were expected"):
        download(server.url, part, patience=HASTY, most=5000)
    assert not part.exists()


def test_a_part_is_not_continued_beyond_the_bound(server: "Server", part: Path) -> None:
    part.write_bytes(BODY[:4000])
    with pytest.raises(BadData, match="at most 5,000 were expected"):
        download(server.url, part, patience=HASTY, most=5000)


def test_a_file_of_just_that_size_is_taken(server: "Server", part: Path) -> None:
    download(server.url, part, patience=HASTY, most=len(BODY))
    assert part.read_bytes() == BODY
