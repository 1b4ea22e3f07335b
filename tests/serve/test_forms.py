import time

import httpx
import pytest

from resitta.serve.forms import payloads
from resitta.serve.http_errors import Refused

END = b"\r\n--x--\r\n"
KIND = "multipart/form-data; boundary=x"


def part(
    content: bytes, disposition: str = 'form-data; name="images"; filename="a.png"', border: bytes = b"--x"
) -> bytes:
    return b"\r\n" + border + b"\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content


@pytest.mark.parametrize("contents", [[b"a"], [b"a\r\n", b"\r\n--y\r\n", b""], [b"--x", b"\r\n-x", b"x--x--"]])
def test_files_come_out_as_they_went_in(contents: list[bytes]) -> None:
    files = [("images", ("name", content)) for content in contents]
    request = httpx.Request("POST", "http://x", files=files)
    request.read()
    assert payloads(request.headers["content-type"], request.content, 9) == contents


def test_forms_that_others_write_are_read() -> None:
    body = part(b"a") + part(b"b", "form-data; filename*=UTF-8''%e2.png; name=x", b"--x \t") + END
    assert payloads(KIND, body, 9) == [b"a", b"b"]
    assert payloads(KIND, b"a preamble" + body + b"an epilogue", 9) == [b"a", b"b"]
    assert payloads('Multipart/Form-Data; charset=utf-8; boundary="x"', body[2:], 9) == [b"a", b"b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        part(b"a"),
        part(b"a", "form-data; name=a") + END,
        part(b"a", "attachment; filename=a") + END,
        b"\r\n--x\r\n" + END,
        b"\r\n--x\r\nA: " + b"a" * 9000 + b"\r\n\r\n" + END,
        part(b"a") * 10 + END,
        part(b"a", border=b"--xy") + b"\r\n--xy--",
    ],
)
def test_other_forms_are_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        payloads(KIND, body, 9)
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; x=y"])
def test_a_form_needs_a_boundary(kind: str) -> None:
    with pytest.raises(Refused, match="boundary"):
        payloads(kind, part(b"a") + END, 9)


@pytest.mark.parametrize("body", [b"\r\n--x" * 500_000, b"--x\r\n" * 500_000, b"\r\n" * 2_000_000, b"-" * 4_000_000])
def test_a_hostile_form_takes_no_longer_than_its_length(body: bytes) -> None:
    start = time.process_time()
    with pytest.raises(Refused):
        payloads(KIND, body, 9)
    assert time.process_time() - start < 2
