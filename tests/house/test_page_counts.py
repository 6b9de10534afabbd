"""Size of the documentation, and the form of its decisions."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES, WORDS = 45, 28_400  # for users; 700 words are the format of stamps
DECISION_PAGES = 14


def decisions(page: Path) -> list[str]:
    """Paragraphs of a page that begin with a decision in bold."""
    parts = re.split(r"\n\n+", page.read_text(encoding="utf-8"))
    return [part for part in parts if part.startswith("**")]


def test_the_documentation_has_few_pages() -> None:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    counted = house.documentation(ROOT)
    assert 30 <= counted["pages for users"] <= PAGES
    assert 15_000 <= counted["words on pages for users"] <= WORDS
    assert 10 <= counted["pages of decisions"] <= DECISION_PAGES


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_reason(page: Path) -> None:
    """*Decision, because, instead of*: most name a reason, some an alternative, and no table asks questions."""
    found = decisions(page)
    assert len(found) >= 3
    assert sum("*because*" in one.lower() for one in found) >= len(found) / 2
    assert any("*instead of*" in one.lower() for one in found)
    questions = re.findall(r"^(?:\||#+|\*\*)[^|*]*\?[ *|]*", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert questions == []


def test_no_page_of_decisions_is_named_by_a_number() -> None:
    """Numbers named pages until they were merged by subject; their addresses lead to the new pages."""
    assert [page.name for page in DECISIONS if page.name[0].isdigit()] == []
    old = (ROOT / "docs" / "hooks" / "redirects.csv").read_text(encoding="utf-8")
    assert len(re.findall(r"^decisions/00\d\d-", old, re.MULTILINE)) == 37
