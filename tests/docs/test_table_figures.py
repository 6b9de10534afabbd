"""A figure of a table has the table's numbers, row by row, and is the one that the script draws."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("table_figures", ROOT / "tools" / "table_figures.py")
assert spec is not None
assert spec.loader is not None
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)
PAGES = {"comparison": "comparison.md", "cde-mini-1": "models/cde-mini-1.md", "cde-base-1": "models/cde-base-1.md"}


def table_under(figure: str, page: str) -> list[list[str]]:
    """Numbers of each row of the table that comes first after a figure."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"drawings/{figure}.svg)")[1]
    found = re.search(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert found is not None
    return [re.findall(r"\b\d+\.\d\b", row.partition(" | ")[2]) for row in found[0].splitlines()[2:]]


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_a_figure_has_the_numbers_of_its_table(figure: str) -> None:
    table = table_under(figure, PAGES[figure])
    rows = list(figures.FIGURES[figure]().values())
    for numbers, row in zip(table, rows, strict=True):
        assert len(numbers) - 1 <= len(row) <= len(numbers)
        assert {f"{value:.1f}" for value in row.values()} <= set(numbers)


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_a_figure_is_drawn_of_the_files(figure: str) -> None:
    """Each mark has its row, column and value as id."""
    drawn = re.findall(r'id="([^"|]+ \| [^"|]+ \| [\d.]+)"', (ROOT / f"docs/drawings/{figure}.svg").read_text("utf-8"))
    rows = figures.FIGURES[figure]().items()
    expected = [f"{row} | {name} | {value:.1f}" for row, values in rows for name, value in values.items()]
    assert drawn == [each.replace("\n", " ") for each in expected]
