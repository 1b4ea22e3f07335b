"""The public corrupted data sets on Zenodo: one frozen record per archive."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One tar of a Zenodo record, and the folders that it brings.

    `holds` are paths below the root that the user chooses; inside the tar, their last parts are the top-level
    folders. All of them being there means that the archive has been unpacked. A download of
    more than `most_gigabytes` is refused: it cannot be this archive.

    >>> DATA_SETS["cifar10c"].archives[0].url()
    'https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1'
    """

    record: int
    file: str
    md5: str
    holds: tuple[str, ...]
    most_gigabytes: int = 32

    def url(self, base_url: str | None = None) -> str:
        """Return the address of the file on Zenodo, or on a mirror that has it directly under `base_url`."""
        base = base_url or f"https://zenodo.org/records/{self.record}/files"
        return f"{base.rstrip('/')}/{self.file}?download=1"

    def is_unpacked(self, root: Path) -> bool:
        """Tell whether everything that the archive holds lies under `root`."""
        return all((root / folder).is_dir() for folder in self.holds)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: its folder below the root, and the archives that fill it."""

    folder: str
    archives: tuple[Archive, ...]


def _imagenet_c(file: str, md5: str, *corruptions: str) -> Archive:
    holds = tuple(f"ImageNet-C/{name}" for name in corruptions)
    return Archive(record=2235448, file=file, md5=md5, holds=holds)


DATA_SETS = {
    "cifar10c": DataSet(
        folder="CIFAR-10-C",
        archives=(
            Archive(
                record=2535967,
                file="CIFAR-10-C.tar",
                md5="56bf5dcef84df0e2308c6dcbcbbd8499",
                holds=("CIFAR-10-C",),
                most_gigabytes=3,
            ),
        ),
    ),
    "cifar100c": DataSet(
        folder="CIFAR-100-C",
        archives=(
            Archive(
                record=3555552,
                file="CIFAR-100-C.tar",
                md5="11f0ed0f1191edbf9fa23466ae6021d3",
                holds=("CIFAR-100-C",),
                most_gigabytes=3,
            ),
        ),
    ),
    "imagenetc": DataSet(
        folder="ImageNet-C",
        archives=(
            _imagenet_c(
                "blur.tar",
                "2d8e81fdd8e07fef67b9334fa635e45c",
                *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
            ),
            _imagenet_c(
                "digital.tar",
                "89157860d7b10d5797849337ca2e5c03",
                *("contrast", "elastic_transform", "jpeg_compression", "pixelate"),
            ),
            _imagenet_c(
                "noise.tar",
                "e80562d7f6c3f8834afb1ecf27252745",
                *("gaussian_noise", "impulse_noise", "shot_noise"),
            ),
            _imagenet_c(
                "weather.tar",
                "33ffea4db4d93fe4a428c40a6ce0c25d",
                *("brightness", "fog", "frost", "snow"),
            ),
        ),
    ),
}
