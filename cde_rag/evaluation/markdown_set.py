"""Retrieval set of a folder of Markdown: each heading is a query for the section under it, which lacks it."""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.readers.decoding import read_text
from cde_rag.readers.headings import Headings
from cde_rag.readers.pages import MARKDOWN
from cde_rag.readers.passages import folder_files
from cde_rag.readers.splitting import split
from cde_rag.readers.titles import front_matter

SHORTEST: Final = 80  # characters of a section; a shorter one is left out
PASSAGE: Final = 600  # characters, unless others are named
_FEWEST: Final = 2  # words of a heading that is a query
_UNDERLINE: Final = re.compile(r"\A\s*(?:-+|=+)[ \t]*$", re.MULTILINE)  # of a heading


def is_markdown(folder: Path) -> bool:
    """Return True for a folder of Markdown files that is no set in BEIR's layout."""
    if not folder.is_dir() or any(folder.glob("corpus.jsonl*")):
        return False
    return any(path.suffix.lower() in MARKDOWN for path in folder_files(folder).readable)


def read_markdown(folder: Path, *, max_characters: int | None = None) -> RetrievalSet:
    """Make a retrieval set of the sections in a folder's Markdown files.

    A section is the text between two headings, with its page's title in front, as `cde-rag index` embeds it; its parent
    is its file. Headings of two words or more that stand once in the folder are the queries. They are written by who
    wrote the text, and so flatter a model of documentation; a comparison of systems on them says more than a figure.

    Args:
        folder: Folder of Markdown files.
        max_characters: Sections are split into passages of this length, 600 by default; the best passage counts.

    Raises:
        CorpusError: There are no such headings.
        MissingExtraError: The extra `files` is not installed.
    """
    ids, texts, parents, headings = list[str](), list[str](), list[str](), list[tuple[str, str]]()
    for path in folder_files(folder).readable:
        if path.suffix.lower() not in MARKDOWN:
            continue
        source = path.relative_to(folder).as_posix()
        markdown = read_text(path)
        for number, (title, heading, text) in enumerate(sections(markdown, path.stem)):
            if len(text) < SHORTEST:
                continue
            id_ = f"{source}#{number}"
            headings.append((id_, heading))
            for start, end in split(text, max_characters or PASSAGE, markdown=True):
                ids.append(id_)
                texts.append(f"{title} {text[start:end]}" if title else text[start:end])
                parents.append(source)
    once = Counter(heading for _, heading in headings)
    asked = [(id_, one) for id_, one in headings if len(one.split()) >= _FEWEST and once[one] == 1]
    if not asked:
        raise CorpusError(
            f"{folder}: expected Markdown with headings of two words or more, found none. Write queries of your own: "
            "corpus.jsonl, queries.jsonl and qrels/test.tsv."
        )
    corpus = Corpus(folder.resolve().name, tuple(ids), tuple(texts), tuple(parents))
    judgments = tuple({id_: 1} for id_, _ in asked)
    query_ids = tuple(f"heading of {id_}" for id_, _ in asked)  # a query of a document's id would not find that one
    return RetrievalSet(corpus, query_ids, tuple(one for _, one in asked), judgments)


def sections(markdown: str, name: str) -> list[tuple[str, str, str]]:
    """Return the sections of a page, each with the page's title, its heading, and its text.

    Args:
        markdown: Text of the page.
        name: Title of a page without headings and without a title in its front matter.

    Returns:
        Title, heading and text; the heading is empty for text above the first heading and right below the title.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """
    found, (own, begin) = Headings(markdown).all, front_matter(markdown)
    title = own or (found[0].text if found else name)
    starts = [begin, *(heading.start for heading in found), len(markdown)]
    headings = ["", *("" if heading is found[0] else heading.text for heading in found)]
    listed: list[tuple[str, str, str]] = []
    for place, heading in enumerate(headings):
        text = markdown[starts[place] : starts[place + 1]]
        below = text.partition("\n")[2] if place else text  # without the heading's line
        listed.append((title, heading, _UNDERLINE.sub("", below).strip()))
    return listed
