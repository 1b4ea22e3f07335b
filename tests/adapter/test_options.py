import dataclasses
import inspect

import resitta
from resitta.adapter import Options


def test_the_options_of_adapt_are_those_of_the_record() -> None:
    signature = inspect.signature(resitta.adapt).parameters
    for field in dataclasses.fields(Options):
        parameter = signature[field.name]
        assert (parameter.default, parameter.kind) == (field.default, inspect.Parameter.KEYWORD_ONLY)
        assert parameter.annotation == field.type
        assert f"        {field.name}: " in str(resitta.adapt.__doc__)
    assert set(signature) - {field.name for field in dataclasses.fields(Options)} == {
        *("model", "method", "preset", "settings"),
    }
