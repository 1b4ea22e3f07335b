"""docs/decisions.md speaks of settings and code that exist, with the defaults that they have."""

import ast
import dataclasses
import pkgutil
import re
from pathlib import Path

import pytest

from resitta.bench.protocol import Protocol
from resitta.methods import ResiTTA

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "decisions.md").read_text("utf-8")
DECISIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
DEFAULTS = {field.name: field.default for kind in (ResiTTA, Protocol) for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("title", DECISIONS)
def test_a_decision_says_what_the_paper_has_what_we_do_why_and_where(title: str) -> None:
    parts = re.findall(r"^- \*\*(\w+)\*\*: (.+)", DECISIONS[title], flags=re.MULTILINE)
    assert [name for name, _ in parts] == ["Paper", "We", "Why", "Setting", "Code"]
    (code,) = re.findall(r"\*\*Code\*\*: `(.+)`$", DECISIONS[title], flags=re.MULTILINE)
    assert pkgutil.resolve_name(code) is not None


@pytest.mark.parametrize("title", DECISIONS)
def test_settings_have_the_defaults_the_page_shows(title: str) -> None:
    (setting,) = re.findall(r"\*\*Setting\*\*: (.+)$", DECISIONS[title], flags=re.MULTILINE)
    if setting != "none":
        name, value = setting.strip("`").split("=")
        assert DEFAULTS[name] == ast.literal_eval(value)


def test_other_values_that_the_page_names_are_settings_too() -> None:
    named = re.findall(r"`(\w+)=(\S+?)`", re.sub(r"\*\*Setting\*\*.*", "", PAGE))
    assert len(named) >= 5
    for name, value in named:
        kind = ResiTTA if name in {field.name for field in dataclasses.fields(ResiTTA)} else Protocol
        assert getattr(kind(**{name: ast.literal_eval(value)}), name) == ast.literal_eval(value)


def test_the_page_has_its_decisions() -> None:
    assert len(DECISIONS) >= 25
