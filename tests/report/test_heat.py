import re
from xml.etree import ElementTree

from resitta.report.heat import difference_table, heat_table
from resitta.report.table import Cell, Row, Table

TABLE = Table(
    ("<i>", "Avg"),
    (
        Row("<b>", "bn", (Cell(80.0), Cell(40.0, 0.5))),
        Row("TENT", "tent", (Cell(20.0), Cell(10.0, 0.25)), (21.0, 20.0)),
    ),
)


def test_heat_is_the_share_of_the_highest_error() -> None:
    html = heat_table(TABLE, {"<b>": "red", "TENT": "blue"})
    assert re.findall(r"--heat:([\d.]+)", html) == ["1.00", "0.50", "0.25", "0.12"]
    root = ElementTree.fromstring(html)
    assert [cell.get("class") for cell in root.iter("td")] == ["second", "second", "best", "best"]
    assert ["".join(cell.itertext()) for cell in root.iter("td")] == ["80.0", "40.0±0.5", "20.0", "10.0±0.2"]
    assert ["".join(cell.itertext()) for cell in root.iter("th")] == ["Method", "<i>", "Avg", "<b>", "TENT"]


def test_differences_only_where_the_paper_has_the_method() -> None:
    root = ElementTree.fromstring(difference_table(TABLE))
    assert [cell.text for cell in root.iter("td")] == ["-1.0", "-10.0"]


def test_errors_of_zero_are_cold() -> None:
    html = heat_table(Table(("Avg",), (Row("a", "a", (Cell(0.0),)),)), {"a": "red"})
    assert "--heat:0.00" in html
