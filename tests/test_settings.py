import pytest

from resitta.bench.api import by_method
from resitta.errors import BadSetting, UnknownName
from resitta.settings import BY_METHOD, parse_pairs


def test_settings_are_sorted_by_method() -> None:
    assert by_method(parse_pairs(["eta=0.1", "per_sample=True"], "--set"), ["tent", "resitta"]) == {
        "tent": {},
        "resitta": {"eta": 0.1, "per_sample": True},
    }
    with pytest.raises(UnknownName, match=r"Did you mean 'tent\.lr'"):
        by_method(parse_pairs(["tent.l=1"], "--set"), ["tent"])


@pytest.mark.parametrize("pair", ["lr", "=1", ""])
def test_what_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(BadSetting, match=f"--set takes key=value or method.key=value, found '{pair}'"):
        parse_pairs([pair], "--set", BY_METHOD)
