"""Passages of Markdown end at sentences, however its paragraphs are wrapped and marked."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.readers import RecordReader
from cde_rag.readers.pages import unmarked

SENTENCES = [
    "Swifts sleep on the *wing*, and so\ndo some others.",
    "A `nest`\nis of straw and [spit](https://nest.org).",
    '"Why\nnot?"',
    "They've **no\nfear** of man.",
]


def passages(tmp_path: Path, text: str, most: int) -> list[str]:
    path = tmp_path / "swifts.md"
    path.write_text(text, newline="")
    return [record.text for record in RecordReader(path, max_characters=most)]


@pytest.mark.parametrize("lead", ["", "- ", "> ", "1. "])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_paragraph_is_cut_between_sentences(tmp_path: Path, lead: str, line_end: str):
    inside = line_end + (" " * len(lead) if lead != "> " else lead)
    wanted = [one.replace("\n", inside) for one in SENTENCES]
    found = passages(tmp_path, lead + inside.join(wanted), 60)
    assert len(found) > 2
    for passage in found:
        assert passage.endswith(tuple(wanted))
        assert passage.removeprefix(lead).startswith(tuple(wanted))


@given(
    st.lists(
        st.sampled_from(
            [*"\n\r`*_[]<>&~\\'\"-#|:+. ", "\n\n", "\r\n", "    ", "```", "---", "a", "é", "1. ", "| a | b |"]
        )
    ).map("".join)
)
def test_only_marks_and_ends_of_lines_are_shown_otherwise(markdown: str):
    shown = unmarked(markdown)
    assert len(shown) == len(markdown)
    for before, after in zip(markdown, shown, strict=True):
        assert before == after or (before in "\r\n" and after == " ") or (not before.isalnum() and after == "”")


def test_code_tables_headings_and_asked_for_line_breaks_stay():
    kept = "# A `b`\n\n```\na *b*\nc\n```\n\n| a | *b* |\n| --- | --- |\n| `c` | d |\n\n    code *here*\n    and\n"
    assert unmarked(kept) == kept
    assert unmarked("one  \ntwo\\\nthree\nfour") == "one  \ntwo”\nthree four"
    assert unmarked("a\0 *b*\nc") == "a\0 ”b” c"  # which the parser gives back as another character
