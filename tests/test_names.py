from resitta import names
from resitta.data.corruptions import api
from resitta.method import list_methods


def test_every_corruption_has_its_function() -> None:
    assert tuple(api._FUNCTIONS) == names.CORRUPTIONS + names.EXTRA
    assert set(names.SHORT) == set(api._FUNCTIONS)


def test_every_method_of_the_tables_is_registered() -> None:
    assert set(names.METHODS) <= set(list_methods())
