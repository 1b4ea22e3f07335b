import re
from pathlib import Path

import pytest

from resitta.data.download import DATA_SETS


@pytest.mark.parametrize("name", DATA_SETS)
def test_records_are_well_formed(name: str) -> None:
    for archive in DATA_SETS[name].archives:
        assert re.fullmatch("[0-9a-f]{32}", archive.md5)
        assert archive.url() == f"https://zenodo.org/records/{archive.record}/files/{archive.file}?download=1"
        assert all(folder.split("/")[0] == DATA_SETS[name].folder for folder in archive.holds)


def test_imagenet_c_has_the_fifteen_corruptions_once() -> None:
    held = [folder for archive in DATA_SETS["imagenetc"].archives for folder in archive.holds]
    assert len(held) == len(set(held)) == 15


def test_a_mirror_replaces_the_base() -> None:
    assert DATA_SETS["cifar10c"].archives[0].url("http://m/x/") == "http://m/x/CIFAR-10-C.tar?download=1"


def test_unpacked_means_every_folder(tmp_path: Path) -> None:
    archive = DATA_SETS["imagenetc"].archives[0]
    for folder in archive.holds:
        assert not archive.is_unpacked(tmp_path)
        (tmp_path / folder).mkdir(parents=True)
    assert archive.is_unpacked(tmp_path)
