"""Paragraphs of printed pages: what was set in lines and on pages comes back as it was written."""

import random
import re
import textwrap
from pathlib import Path

import pytest
from pdf_pages import pdf_of
from typer.testing import CliRunner

from cde_rag import Collection
from cde_rag.cli import app
from cde_rag.readers import RecordReader
from cde_rag.readers.printed_pages import has_tables, paragraphs_of
from cde_rag.server.mcp_tools import CollectionTools
from cde_rag.server.search_results import with_matches

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide"
HANDBOOK = [
    "Acme maintenance handbook",
    "The refrigeration compressor must be inspected every three months by a certi-",
    "fied technician, who records the discharge temperature, the suction pressure",
    "and the refrigerant charge in the logbook. Whenever the temperature exceeds",
    "\f",
    "Acme maintenance handbook",
    "one hundred and ten degrees, the unit is disconnected from the supply at once.",
    "",
    "Valves are replaced after ten years, or when one has leaked twice in one summer.",
    "\f",
    "Acme maintenance handbook",
    "Filters are washed in spring.",
]


def written() -> list[str]:
    """Paragraphs of the documentation in plain words."""
    blocks = [block for page in sorted(GUIDE.parent.rglob("*.md")) for block in page.read_text("utf-8").split("\n\n")]
    prose = [" ".join(re.sub(r"[`*|]|\]\(\S+\)", "", block).split()) for block in blocks if block[:1].isupper()]
    return [
        block
        for block in prose
        if len(block) > 90 and re.fullmatch(r"(?:[^\W_]|[ .,;:'-])+\.", block) and " -" not in block
    ][:40]


def set_in_lines(paragraph: str, width: int, chance: random.Random) -> list[str]:
    """Set a paragraph in full lines, with long words divided by hyphens."""
    lines = [""]
    for word in paragraph.split(" "):
        room = width - len(lines[-1]) - 1
        if len(word) <= room:
            lines[-1] = f"{lines[-1]} {word}".strip()
        elif word.isalpha() and word.islower() and len(word) > 5 and room > 3 and chance.random() < 0.9:
            cut = min(room - 1, len(word) - 3)
            lines[-1] += f" {word[:cut]}-"
            lines.append(word[cut:])
        else:
            lines.append(word)
    return lines


@pytest.mark.parametrize("width", [48, 66, 90])
def test_what_was_set_is_read_as_it_was_written(width: int):
    """Lines, hyphens, headers, footers and pages come and go; the text stays, and no line end is left in it."""
    chance = random.Random(width)
    paragraphs = written()
    assert len(paragraphs) > 4
    lines = [line for each in paragraphs * 3 for line in ["", *set_in_lines(each, width, chance)]][1:]
    assert sum(line.endswith("-") for line in lines) > 2
    pages = [lines[begin : begin + 17] for begin in range(0, len(lines), 17)]
    printed = ["\n".join(["Concepts of search", "", *page, "", f"- {n} -"]) for n, page in enumerate(pages, 5)]
    read = paragraphs_of(printed)
    assert read.count("\f") == len(pages) - 1
    assert " ".join(read.split()) == " ".join(["Concepts of search", *paragraphs * 3])
    assert "\n" not in read.replace("\n\n", "")


def test_what_is_no_paragraph_keeps_its_lines():
    """Lists, verses, addresses, tables and code, and what a hyphen means elsewhere than between syllables."""
    kept = [
        "1. Open the valve slowly and wait until the pressure falls\n2. Close the valve again when the lamp is green",
        "Acme Inc.\n12 Main Road\nSpringfield",
        "for row in rows:\n    total += row.price * row.count\n    print(row.name)",
        "| Part | Price |\n| --- | --- |\n| Filter | 12.50 |",
        "Filters | FC-100 | 12.50 EUR | 3 in stock now\nValves  | VA-200 | 25.00 EUR | 6 in stock now",
    ]
    assert paragraphs_of(["\n\n".join(kept)]) == "\n\n".join(kept)
    lines = [
        "It is a well-known rule that nobody ever saw the well-",
        "known short- and long-term effects of brief or short-",
    ]
    lines += ["and long-term storage in cellars as in the old Franco-", "German archive, which is closed today."]
    assert paragraphs_of(["\n".join(lines)]) == (
        "It is a well-known rule that nobody ever saw the well-known short- and long-term effects of brief or "
        "short- and long-term storage in cellars as in the old Franco-German archive, which is closed today."
    )


def test_chinese_lines_are_joined_without_spaces():
    long = "服务器在每天夜里检查一次，管理员可以关闭检查，所有用户会收到通知，数据不会丢失，"
    lines = [long, long, "然后结束。"]
    assert paragraphs_of(["\n".join(lines)]) == "".join(lines)


def test_headings_that_are_numbered_are_no_headers():
    pages = [
        f"Exercise {n}\n\nCount to {n * n} and back, and say how long it took you to do it.\n\n{n}" for n in (1, 2, 3)
    ]
    assert [part.split("\n")[0] for part in paragraphs_of(pages).split("\f")] == [
        "Exercise 1",
        "Exercise 2",
        "Exercise 3",
    ]
    assert paragraphs_of(["", "A text.", "", "B text."]) == "\fA text.\n\n\f\fB text."  # empty pages count


def test_pages_of_few_lines_keep_one_of_each():
    """Head and foot of a page of one line are one line, of which one was lost by each."""
    assert paragraphs_of([""]) == paragraphs_of([]) == ""
    assert paragraphs_of(["Boats", "Boats", "Boats"]) == "Boats"
    slides = [f"Acme Inc\n\nBoat {name}\n\nFor members" for name in ("Ada", "Bob", "Cyd")]
    assert paragraphs_of(slides).replace("\f", "") == "Acme Inc\n\nBoat Ada\n\nFor members\n\nBoat Bob\n\nBoat Cyd"
    weeks = [
        f"Week {n} of the course\n\nRead about {name} on page {n}.\n\nThe course, page {n} of 3"
        for n, name in ((1, "boats"), (2, "fish"))
    ]
    assert re.findall(r"Week \d|page \d of", paragraphs_of(weeks)) == ["Week 1", "page 1 of", "Week 2"]


def test_code_keeps_its_lines_and_long_texts_end():
    """Code with long lines, and a paragraph of a million characters, which took minutes."""
    code = "    if response.status_code == 404 and not retry:\n        raise MissingPageError(response.url)\n"
    code += "    for attempt in range(number_of_attempts):\n        wait_for_the_server(attempt)"
    assert paragraphs_of([code]) == code
    line = "the fox jumps over the dog and goes on with it all day and all night long"
    page = "\n".join([line] * 40)
    assert len(paragraphs_of([page] * 300).split("\f")) == 300
    assert paragraphs_of([f"{'a' * 200_000}\n{'b-' * 200_000}\n{line}"]).endswith(line)


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs" / "handbook.pdf"
    pages = "\n".join(HANDBOOK).split("\n\f\n")
    path.write_bytes(pdf_of([page.split("\n") for page in pages]))
    return path


def test_a_passage_goes_over_the_end_of_a_page_and_names_both(handbook: Path):
    records = list(RecordReader(handbook.parent))
    text = " ".join(record.text for record in records)
    assert "inspected every three months by a certified technician, who records" in text
    assert "Whenever the temperature exceeds one hundred and ten degrees, the unit" in text
    assert text.count("Acme maintenance handbook") == 1
    assert records[0].title == "Acme maintenance handbook"
    first = next(record for record in records if "certified" in record.text)
    assert (first.metadata["page"], first.metadata["last_page"]) == (1, 3)


def test_a_hit_says_its_page_wherever_it_is_shown(handbook: Path, tmp_path: Path):
    place, query = str(tmp_path / "docs.faiss"), "when are valves replaced?"
    made = CliRunner().invoke(app, ["index", str(handbook.parent), place, "--max-characters", "100"])
    assert made.exit_code == 0, made.output
    assert "handbook.pdf, page 2\n" in CliRunner().invoke(app, ["search", place, query, "-k", "1"]).stdout
    with Collection.open(place) as docs:
        hit = docs.search(query, k=1)[0]
        assert hit.metadata["page"] == 2
        assert with_matches(hit, query)["place"] == "page 2"  # for the page and the chat
        assert CollectionTools({"docs": docs}).search(query, k=1)[0]["place"] == "page 2"


def test_lines_with_wide_spaces_are_no_table(tmp_path: Path):
    """A converter that aligns columns finds some in any justified text, and cuts its sentences into cells."""
    text = "the valve of each filter is made of steel and opens by itself when its spring is warm " * 4
    (tmp_path / "justified.pdf").write_bytes(pdf_of([textwrap.wrap(text, 50)], by_word=True))
    rows = [["Part", "Number", "Price"], *([f"Filter {name}", f"FC-{name}", "12.50 EUR"] for name in "ABCDEFGH")]
    (tmp_path / "prices.pdf").write_bytes(pdf_of([rows]))
    texts = {record.metadata["source"]: record.text for record in RecordReader(tmp_path)}
    found = {Path(source).name: text for source, text in texts.items()}
    assert "|" not in found["justified.pdf"]
    assert "opens by itself when its spring is warm the valve" in " ".join(found["justified.pdf"].split())
    assert "| Filter C | FC-C   | 12.50 EUR |" in found["prices.pdf"]


def test_words_without_spaces_are_no_table():
    cells = "| Part | Price |\n| ---- | ----- |\n| Filter | 12.50 |"
    assert has_tables(cells, "Part Price\nFilter 12.50")
    assert not has_tables(f"{cells}\nThesefileshave", "Part Price\nFilter 12.50\nThese files have")
