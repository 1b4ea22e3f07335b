import inspect

import pytest

from resitta import errors


def test_everything_is_a_resitta_error() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert len(classes) >= 12
    assert all(issubclass(c, errors.ResittaError) for c in classes)
    assert all(c.__doc__ for c in classes)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("rezitta", "Did you mean 'resitta'?"),
        ("ristta", "Did you mean 'resitta'?"),
        ("TENT", "Did you mean 'tent'?"),
        ("tnet", "Did you mean 'tent'?"),
        ("resi", "Did you mean 'resitta'?"),
        ("nb", "Known: bn, resitta, tent."),
        ("te", "Known: bn, resitta, tent."),
        ("eata", "Known: bn, resitta, tent."),
        ("sar", "Known: bn, resitta, tent."),
        ("x", "Known: bn, resitta, tent."),
        ("", "Known: bn, resitta, tent."),
    ],
)
def test_near_names(name: str, answer: str) -> None:
    assert errors.near(name, ["tent", "resitta", "bn"]) == answer


def test_a_missing_extra_is_an_import_error_that_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"nowhere is not installed; run: pip install .*\[cli\]"):
        errors.require("nowhere.inside", "cli")
