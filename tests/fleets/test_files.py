"""One file for each stream, whatever it is called."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import small_network, stream

import resitta
from resitta.errors import BadSetting, BadState
from resitta.fleets.files import StreamFiles, check_name, encoded


@given(st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable()))
def test_every_name_has_a_file_name_of_its_own(name: str) -> None:
    written = encoded(name)
    assert unquote(written) == name
    assert not set(written) & set('/\\:*?"<>| ')
    codes = re.sub("%[0-9A-F]{2}", "", written)
    assert codes == codes.lower() or not codes.isascii()


def test_names_that_differ_in_case_have_files_that_differ_otherwise() -> None:
    assert encoded("Cam").casefold() != encoded("cam").casefold()


@pytest.mark.parametrize("name", ["", 3, None, "\ud800", "x" * 221, "ü" * 40])
def test_bad_names(name: object) -> None:
    with pytest.raises(BadSetting, match="a stream's name"):
        check_name(name)


def test_saved_streams_are_found_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "stream-x.safetensors.0a1b.tmp").touch()
    files = StreamFiles(tmp_path)
    adapter = resitta.adapt(small_network(), "resitta")
    adapter(stream(8))
    for name in ("a/b", "Ä"):
        files.save(name, adapter, {})
    assert set(files.names()) == {"a/b", "Ä"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".lock"}
    again = adapter.sibling()
    assert files.restore("Ä", again) == {}
    assert again.samples == 8
    files.remove("Ä")
    files.remove("Ä")
    assert set(files.names()) == {"a/b"}


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    files = StreamFiles(tmp_path)
    adapter = resitta.adapt(small_network(), "resitta")
    files.save("a", adapter, {})
    files.path("a").rename(files.path("b"))
    with pytest.raises(BadState, match="holds no stream called 'b'"):
        files.restore("b", adapter)
    files.close()
    with pytest.raises(BadSetting, match="this fleet was closed"):
        files.save("a", adapter, {})


def test_any_adapter_loads_a_stream(tmp_path: Path) -> None:
    with resitta.fleet(small_network(), "resitta", folder=tmp_path) as fleet:
        fleet["a"](stream(8))
    assert resitta.load(small_network(), tmp_path / "stream-a.safetensors").stats.samples == 8
