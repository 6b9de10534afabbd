"""Text analyzer: the terms of text search, the same in every store.

Title and text are normalised to NFKC, case-folded, and split into runs of letters (with their marks), digits and
underscores. English stop words are removed, and the others stemmed. In scripts without spaces between words, such as
Chinese, Japanese and Thai, a term is everything up to the next punctuation mark. Stems are by Porter's algorithm as
published in 1980 (PyStemmer's `porter`), which does not change: text indexed with one version is found with the next.
"""

import functools
import re
import unicodedata
from typing import Any, Final

import Stemmer

from cde_rag.stores.base import Record

LONGEST: Final = 64  # characters of a word that count
K1: Final = 1.2  # of BM25, in every store
B: Final = 0.75  # of BM25, in every store
_RUN: Final = re.compile(r"\w+")
_STOP_WORDS: Final = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)  # Lucene's
_PORTER: Any = Stemmer.Stemmer("porter", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def words_in(text: str) -> list[str]:
    """Return the terms of a text, in order; none of them has a blank, a quote or an upper-case letter.

    Example:
        >>> words_in("The Café’s relational_db; ﬁles RUNNING in 2024")
        ['café', 's', 'relational_db', 'file', 'run', '2024']
        >>> words_in("हिन्दी भाषा")
        ['हिन्दी', 'भाषा']
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return [_stem(word[:LONGEST]) for word in _runs(plain) if word not in _STOP_WORDS]


def words_of(record: Record) -> list[str]:
    """Return the terms of a record's title and text."""
    return words_in(f"{record.title} {record.text}")


@functools.lru_cache(2**16)
def _stem(word: str) -> str:
    """Return a word's stem; words of two letters ("us", "js") and words with other letters than a to z stay."""
    return _PORTER.stemWord(word) if len(word) > 2 and word.isascii() and word.isalpha() else word


def _runs(plain: str) -> list[str]:
    marks = "" if plain.isascii() else "".join(sorted(one for one in set(plain) if unicodedata.category(one)[0] == "M"))
    return re.findall(rf"\w[\w{marks}]*", plain) if marks else _RUN.findall(plain)
