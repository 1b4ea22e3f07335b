import inspect

import pytest

from resitta.data.corruptions.api import _FUNCTIONS
from resitta.data.corruptions.tables import _TABLES, SIDES, setting


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_the_tables_name_exactly_the_settings_of_the_function(name: str) -> None:
    parameters = inspect.signature(_FUNCTIONS[name]).parameters.values()
    wanted = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for side in SIDES:
        for severity in (1, 2, 3, 4, 5):
            assert list(setting(name, severity, side=side)) == wanted


def test_every_corruption_has_a_table_and_every_table_a_corruption() -> None:
    assert set(_TABLES) == set(_FUNCTIONS)


@pytest.mark.parametrize(
    ("side", "expected"), [(8, 0.1), (32, 0.1), (47, 0.1), (64, 0.18), (128, 0.18), (224, 0.38), (512, 0.38)]
)
def test_other_sizes_use_the_nearest_table(side: int, expected: float) -> None:
    assert setting("gaussian_noise", 5, side=side) == {"std": expected}


@pytest.mark.parametrize(
    ("name", "grows"),
    [("gaussian_noise", True), ("shot_noise", False), ("contrast", False), ("jpeg_compression", False)],
)
def test_severity_grows(name: str, grows: bool) -> None:
    for side in SIDES:
        strengths = [next(iter(setting(name, s, side=side).values())) for s in (1, 2, 3, 4, 5)]
        assert strengths == sorted(strengths, reverse=not grows)
