from pathlib import Path

import pytest

from resitta.cli import main
from resitta.cli.serving import make_adapter


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    return capsys.readouterr().err


RANDOM = ("wrn16x1", "--untrained")


def test_wrong_options_end_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    assert "give --size" in refusal(capsys, "torch.nn:Identity")
    assert "positive number" in refusal(capsys, *RANDOM, "--size", "0")
    assert "Did you mean 'wrn40x2'" in refusal(capsys, "wrn40", "--size", "32")
    assert "no method is called" in refusal(capsys, *RANDOM, "--method", "nothing")
    assert "choose another --host or --port" in refusal(capsys, *RANDOM, "--port", "99999")
    assert "found 2 names" in refusal(capsys, *RANDOM, "--labels", str(tmp_path / "names.txt"))
    assert "cannot be read" in refusal(capsys, *RANDOM, "--labels", str(tmp_path / "nowhere.txt"))
    assert "keep must be >= 1" in refusal(capsys, *RANDOM, "--keep", "0")
    assert "readers must be at least 1" in refusal(capsys, *RANDOM, "--engine", "ray", "--readers", "0")
    assert "without --engine ray" in refusal(capsys, *RANDOM, "--engine", "ray", "--method", "tent")
    monkeypatch.setenv("RESITTA_TOKEN", "short")
    assert "at least 16 characters" in refusal(capsys, *RANDOM)


def test_settings_reach_the_method() -> None:
    adapter = make_adapter(
        "wrn16x1",
        None,
        untrained=True,
        method="resitta",
        preset="imagenet",
        settings=["lr=0.5"],
        seed=3,
        guard=True,
        device="cpu",
    )
    assert (adapter.method.lr, adapter.method.eta, adapter.options.seed) == (0.5, 0.05, 3)  # type: ignore[attr-defined]
    assert adapter.guard is not None


@pytest.mark.parametrize(
    ("method", "settings", "anchor"), [("resitta", [], 0.1), ("resitta", ["anchor=0"], 0.0), ("rotta", [], None)]
)
def test_a_service_is_anchored_unless_told_otherwise(method: str, settings: list[str], anchor: float | None) -> None:
    given = {"method": method, "settings": settings, "untrained": True}
    adapter = make_adapter("wrn16x1", None, **given, preset=None, seed=0, guard=True, device="cpu")  # type: ignore[arg-type]
    assert getattr(adapter.method, "anchor", None) == anchor
