"""Splitting by tokens: all text is there, limits hold, and blocks that fit are whole."""

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.readers.headings import Headings
from cde_rag.readers.markup import Stripped, noise
from cde_rag.readers.token_splitting import TokenSplitter

SPECIAL = 2


def words(texts: Sequence[str]) -> int:
    """Tokens of a model whose tokens are words and marks, as those of BERT, with two special ones."""
    return sum(SPECIAL + len(re.findall(r"\w{1,6}|[^\w\s]", text)) for text in texts)


def sizes(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    return [words([text[start:end]]) - SPECIAL for start, end in spans]


LINES = st.sampled_from(
    [
        *("# One", "## Two", "### Three", "Title\n=====", "", "", "---", "Some words, and more of them. Another one!"),
        *("- an item", "  - an inner item", "1. first", "```", "~~~sh", "    code()", "| a | b |", "| --- | --- |"),
        *("| c | d |", "> quoted words", "<!-- gone -->", "[link](https://example.org/a(b)", "[x]: https://x.org"),
        *(
            "`code` and *emphasis* e.g. this",
            "é 一二三。四五六！",
            "x" * 70,
            "word " * 40,
            "\t",
            "\u00a0",
            "a\rb",
            "\0",
        ),
    ]
)
PAGES = st.lists(LINES, max_size=24).map("\n".join)


@given(PAGES, st.integers(1, 40), st.sampled_from(["markdown", "text", "code"]))
def test_all_text_comes_once_and_no_passage_is_too_long(text: str, most: int, form: str) -> None:
    spans = TokenSplitter(words, None, most).split(text, "", form)  # pyright: ignore[reportArgumentType]
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    for end, start in zip(ends, starts, strict=True):
        assert end <= start
        assert not text[end:start].strip()
    for (start, end), size in zip(spans, sizes(text, spans), strict=True):
        assert text[start:end].strip()
        assert size <= most or end - start == 1


@given(PAGES, st.integers(10, 40), st.integers(1, 5))
def test_an_overlap_repeats_the_end_of_the_passage_before(text: str, most: int, overlap: int) -> None:
    spans = TokenSplitter(words, None, most, overlap).split(text, "", "markdown")
    assert all(size <= most for size in sizes(text, spans))
    for (_, end), (start, stop) in pairwise(spans):
        assert end <= stop
        assert words([text[start:end]]) - SPECIAL <= overlap if start < end else not text[end:start].strip()


@given(PAGES, st.integers(20, 60), st.integers(0, 30))
def test_title_and_passage_fit_into_the_window(text: str, window: int, length: int) -> None:
    splitter = TokenSplitter(words, window, 160)
    title = splitter.title("word " * length)
    for start, end in splitter.split(text, title, "markdown"):
        assert words([f"{title} {text[start:end]}"]) <= window


PROSE = st.sampled_from(["Swifts sleep on the wing.", "They nest under roofs; nobody minds.", "A third sentence here."])
BLOCKS = st.one_of(
    st.lists(PROSE, min_size=1, max_size=6).map(" ".join),
    st.lists(st.sampled_from(["a = f(b)", "", "  return a", "}"]), min_size=1, max_size=8).map(
        lambda lines: "```\nx\n" + "\n".join(lines) + "\ny\n```"
    ),
    st.integers(1, 5).map(lambda rows: "| a | b |\n| --- | --- |" + "\n| words | here |" * rows),
    st.lists(PROSE, min_size=2, max_size=5).map(lambda items: "\n".join(f"* {item}" for item in items)),
    st.sampled_from(["## A section", "### An inner one"]),
)


@given(st.lists(BLOCKS, min_size=1, max_size=10))
def test_fences_tables_and_lists_that_fit_are_whole_and_headings_stay_with_their_text(blocks: list[str]) -> None:
    most = 60
    kinds = [block[0] for block in blocks]
    blocks = [
        block for block, kind, before in zip(blocks, kinds, ["", *kinds], strict=False) if kind != "*" or before != "*"
    ]
    text = "\n\n".join(blocks)  # two lists would be one
    spans = TokenSplitter(words, None, most).split(text, "", "markdown")
    place = 0
    headings = 0  # tokens of those directly above
    for block in blocks:
        start = text.index(block, place)
        place = start + len(block)
        size = words([block]) - SPECIAL
        if block.startswith("#"):
            headings += size
            continue
        if not block.startswith(("Swifts", "They", "A ")) and size + headings <= most:
            assert any(begin <= start and place <= end for begin, end in spans)
        headings = 0
    for start, end in spans[:-1]:
        last = text[start:end].rsplit("\n", 1)[-1]
        assert not last.startswith("#") or words([text[start:end]]) - SPECIAL > most // 2


def test_no_passage_is_an_orphan() -> None:
    """A passage of a few words is joined, or gets a part of its neighbour."""
    sentences = [f"Sentence number {number} says a little about swifts." for number in range(21)]
    text = "\n\n".join(" ".join(sentences[first : first + 7]) for first in (0, 7, 14))
    spans = TokenSplitter(words, None, 60).split(text, "", "markdown")
    assert min(sizes(text, spans)) >= 20
    assert all(text[start:end].startswith("Sentence") and text[start:end].endswith(".") for start, end in spans)


@pytest.mark.parametrize(
    "expression",
    ["`a. B c. D e`", "[See. The page. Now](https://example.org/a.B)", "<a href='x. Y'>", "Dr. Who", "e.g. This"],
)
def test_no_passage_begins_in_an_expression(expression: str) -> None:
    text = " ".join(["Ordinary words stand here before it.", f"Then {expression} follows here at once."] * 12)
    for start, _ in TokenSplitter(words, None, 36).split(text, "", "markdown"):
        assert text.startswith(("Ordinary", "Then"), start)


def test_code_is_cut_between_functions() -> None:
    function = "def f{0}(a):\n    '''Words about it.'''\n    b = a + {0}\n\n    return g(b, {0})\n"
    text = "import x\n\n\n" + "\n\n".join(function.format(number) for number in range(6))
    spans = TokenSplitter(words, None, 60).split(text, "", "code")
    assert all(text[start:end].startswith(("def", "import")) for start, end in spans)
    assert all(text[start:end].endswith(")") for start, end in spans)


def test_a_tokenizer_whose_pieces_do_not_add_up_keeps_the_limit() -> None:
    """Joined pieces have more tokens than the pieces."""

    def tokens(texts: Sequence[str]) -> int:
        return sum(1 + len(text.split()) + text.count("\n") * 3 for text in texts)

    text = "\n\n".join(f"word{number} and more. Again." for number in range(50))
    for start, end in TokenSplitter(tokens, None, 20).split(text, "", "markdown"):
        assert tokens([text[start:end]]) - 1 <= 20


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "abcd, " * 20_000, "`" * 20_000, "a " + "`" * 5_000, "[a](b " * 8_000, "一二三" * 20_000],
)
def test_long_lines_take_little_time(text: str) -> None:
    spans = TokenSplitter(lambda texts: sum(1 + len(text) // 4 for text in texts), None, 160).split(
        text, "", "markdown"
    )
    assert "".join(text[start:end] for start, end in spans).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("suffix", [".md", ".mdx"])
def test_markup_is_found_in_little_time(suffix: str) -> None:
    for text in ("a " + "`" * 5_000, "`" * 5_000, "~" * 5_000):
        assert list(noise(text, suffix)) == []
    page = "Run ``a `<!-- b -->` c`` and `<!-- d -->`. <!-- e -->"
    assert Stripped(page, noise(page, suffix)).text == page.replace("<!-- e -->", "")


def test_headings_know_where_they_end() -> None:
    text = "# One\n\nTwo\n===\nWords."
    assert [text[one.start : one.end] for one in Headings(text).all] == ["# One\n", "Two\n===\n"]
