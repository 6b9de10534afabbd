"""Splitting long texts: in time that grows with the length, whatever is in them, and as before where it did anyway."""

import base64
import random
from typing import Any

import pytest
import semantic_text_splitter
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.readers.splitting import LONGEST_LINE, split

LONG = {
    "one word": "a" * 50_000,
    "base64": base64.b64encode(random.Random(0).randbytes(40_000)).decode(),
    "no sentence": "abcd " * 10_000,
    "comma": "abcd," * 10_000,
    "Han without a stop": "".join(chr(random.Random(1).randrange(0x4E00, 0x9000)) for _ in range(20_000)),
    "sentences": "This is a text. " * 3_000,
    "between paragraphs": "A paragraph.\n\n" + "x" * 20_000 + "\n\nAnother one.\n\n" + "y z " * 4_000,
}


@pytest.mark.parametrize("markdown", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_the_splitter_is_shown_no_long_line(monkeypatch: pytest.MonkeyPatch, name: str, markdown: bool) -> None:
    """Its work grows with the square of the longest one."""
    shown: list[str] = []
    kind = "MarkdownSplitter" if markdown else "TextSplitter"
    splitter = getattr(semantic_text_splitter, kind)

    class Counted:
        def __init__(self, most: int) -> None:
            self._splitter = splitter(most)

        def chunk_indices(self, text: str) -> Any:
            shown.append(text)
            return self._splitter.chunk_indices(text)

    monkeypatch.setattr(semantic_text_splitter, kind, Counted)
    text = LONG[name]
    spans = split(text, 100, markdown=markdown)
    assert sum(map(len, shown)) == len(text)
    assert max(len(line) for one in shown for line in one.split("\n")) <= LONGEST_LINE * 100
    assert all(0 < end - start <= 100 for start, end in spans)
    assert "".join(text[start:end] for start, end in spans).split() == [] or (
        "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    )


WORDS = st.sampled_from(["word", "a", "sentence. ", "End! ", " ", "\n", "\n\n", "é", "# ", "- ", "一二三", "x" * 30])


@given(st.lists(WORDS, max_size=200).map("".join), st.integers(5, 60), st.booleans())
def test_ordinary_text_is_split_as_by_the_splitter_alone(text: str, most: int, markdown: bool) -> None:
    """All text whose lines are not several times as long as a passage."""
    if max(map(len, text.split("\n"))) <= LONGEST_LINE * most:
        kind = semantic_text_splitter.MarkdownSplitter if markdown else semantic_text_splitter.TextSplitter
        expected = [(start, start + len(chunk)) for start, chunk in kind(most).chunk_indices(text)]
        assert split(text, most, markdown=markdown) == expected


@given(st.lists(WORDS, max_size=300).map("".join), st.integers(1, 12), st.booleans())
def test_no_character_is_lost_and_none_comes_twice(text: str, most: int, markdown: bool) -> None:
    spans = split(text, most, markdown=markdown)
    assert all(start < end <= start + most for start, end in spans)
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    for end, start in zip(ends, starts, strict=True):
        assert end <= start
        assert not text[end:start].strip()
