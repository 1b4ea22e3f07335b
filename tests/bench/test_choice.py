from pathlib import Path

import pytest
from tests.tools import OWN_METHOD

from resitta import methods
from resitta.bench.choice import choose
from resitta.bench.presets import METHODS
from resitta.errors import BadSetting, UnknownName
from resitta.methods import ResiTTA, Tent


def test_names_files_and_instances(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "1"))
    chosen = choose(
        ["tent", f"{tmp_path}/own.py:mine", ResiTTA(eta=0.02)],
        preset="imagenet",
        settings={"mine.rate": 0.3, "lr": 0.5},
    )
    assert [method.name for method in chosen] == ["tent", "mine", "resitta"]
    assert (vars(chosen[0])["lr"], vars(chosen[1])["rate"]) == (0.5, 0.3)
    assert chosen[2] == ResiTTA(eta=0.02), "an instance is taken as it is"


def test_all_stands_for_every_registered_method(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "1"))
    assert [method.name for method in choose(["all"])] == list(METHODS)
    both = choose([f"{tmp_path}/own.py:mine", "all"])
    assert [method.name for method in both] == ["mine", *METHODS]


def test_the_same_method_is_run_once() -> None:
    assert choose(["tent", "tent", Tent(), Tent(lr=0.5)]) == [Tent(), Tent(lr=0.5)]


@pytest.mark.parametrize(
    ("given", "settings", "error", "words"),
    [
        ("tent", {}, BadSetting, r"methods takes a list such as \['source', 'resitta'\], found 'tent'"),
        ([], {}, BadSetting, "at least one method"),
        ([3], {}, BadSetting, "found a int"),
        (["tnet"], {}, UnknownName, "Did you mean 'tent'"),
        (["tent"], {"eta": 1}, UnknownName, "no method of this bench has the setting 'eta'"),
        ([methods.Tent()], {"lr": 1}, UnknownName, "no method of this bench has the setting 'lr'"),
    ],
)
def test_wrong_choices_are_refused(
    given: object, settings: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose(given, settings=settings)  # type: ignore[arg-type]


def test_a_method_without_a_name_is_refused() -> None:
    class Nameless(Tent):
        name = ""

    with pytest.raises(BadSetting, match=r"Nameless has no name to report it by; put @resitta.register"):
        choose([Nameless()])
