"""The pip commands that messages name: they must work from a checkout, from a wheel, and beside any build of torch."""

import json
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

CHECKOUT = Path(__file__).resolve().parents[2]
BUILT_FOR_TORCH = ("torch", "torchvision", "torchaudio")


def install_extra(extra: str) -> str:
    """Return the command that adds an extra to the package as it is installed here."""
    if (CHECKOUT / "pyproject.toml").is_file():
        return f'pip install -e "{CHECKOUT}[{extra}]"'
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        return f'pip install "{url2pathname(urlparse(url).path)}[{extra}]"'
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f'pip install "resitta[{extra}]{f" @ {url}" if url else ""}"'


def _origin() -> dict[str, dict[str, str]]:
    """Where pip took the package from, if not from an index (PEP 610)."""
    try:
        text = distribution("resitta").read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    found: dict[str, dict[str, str]] = json.loads(text or "{}")
    return found


def install(*packages: str, upgrade: bool = False) -> str:
    """Return the command that installs packages; builds for one torch come from the index of that torch.

    >>> install("timm")
    'pip install timm'
    """
    index = _torch_index()
    bound = [name for name in packages if index and name in BUILT_FOR_TORCH]
    others = [name for name in packages if name not in bound]
    pip = "pip install --upgrade" if upgrade else "pip install"
    first = [f"{pip} {' '.join(bound)} --index-url {index}"] if bound else []
    return " && ".join(first + ([f"{pip} {' '.join(others)}"] if others else []))


def _torch_index() -> str | None:
    """The index that has builds for a torch such as 2.13.0+cpu; torch from the common index has no such mark."""
    try:
        mark = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return None
    return f"https://download.pytorch.org/whl/{mark}" if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", mark) else None
