"""Text analyzers: the terms of text search. A collection records the one that made its terms.

Title and text are normalised to NFKC, case-folded, and split into runs of letters (with their marks), digits and
underscores. English stop words are removed, and the others stemmed. In scripts without spaces between words, such as
Chinese, Japanese and Thai, a term is everything up to the next punctuation mark. Stems are by Porter's algorithm as
published in 1980 (PyStemmer's `porter`), which does not change: text indexed with one version is found with the next.

The analyzer `porter-identifiers` adds the parts of identifiers: `create_path` and `createPath` have the terms `create`
and `path` in addition, so that a query in plain words finds code. `porter-identifiers-2` first removes the characters
that are not shown, such as soft hyphens and joiners, which would cut a word in two. `porter` and `porter-identifiers`
are those of collections made before; `index_texts` of a store moves a collection to the newest analyzer.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import Stemmer

from cde_rag.errors import StoreFormatError
from cde_rag.records import Record

LONGEST: Final = 64  # characters of a word that count
K1: Final = 1.2  # of BM25, in every store
B: Final = 0.75  # of BM25, in every store
ANALYZER: Final = "analyzer"  # key of a collection's settings
_RUN: Final = re.compile(r"\w+")
_JOINT: Final = re.compile(r"[a-z][A-Z]|[a-zA-Z0-9]_[a-zA-Z0-9]")  # inside an identifier
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
# Default_Ignorable_Code_Point of the Unicode Character Database (DerivedCoreProperties.txt), but the zero-width space
_IGNORABLE: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Scripts without spaces, in which a zero-width space stands between words: Thai and Lao, Burmese, Khmer, Tai, Chinese
# and Japanese. In others it shows where a long word may be broken.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_INVISIBLE: Final = re.compile(rf"[{_IGNORABLE}\u200b]")
_BETWEEN_WORDS: Final = re.compile(rf"(?<=[{_UNSPACED}])\u200b|\u200b(?=[{_UNSPACED}])")
WORD: Final = re.compile(rf"\w[\w{_IGNORABLE}\u200b]*")  # as it stands in a text
_STOP_WORDS: Final = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)  # Lucene's
_PORTER: Any = Stemmer.Stemmer("porter", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class TextAnalyzer:
    """Analyzer of texts and queries.

    Attributes:
        name: Name in a collection's settings. The terms of a name never change.
        terms: Returns the terms of a text; none of them has a blank, a quote or an upper-case letter.
    """

    name: str
    terms: Callable[[str], list[str]]

    def record_terms(self, record: Record) -> list[str]:
        """Return the terms of a record's title and text."""
        return self.terms(f"{record.title} {record.text}")


def analyzer_of(settings: Mapping[str, Any]) -> TextAnalyzer:
    """Return the analyzer that a collection's settings name; `porter` if they name none.

    Raises:
        StoreFormatError: There is no analyzer of that name.
    """
    name = settings.get(ANALYZER, PORTER.name)
    for analyzer in (PORTER, IDENTIFIERS, NEWEST):
        if analyzer.name == name:
            return analyzer
    known = f"{PORTER.name}, {IDENTIFIERS.name} or {NEWEST.name}"
    raise StoreFormatError(f"{ANALYZER}: expected {known}, found {name!r:.80}. Update cde-rag to open the collection.")


def updated(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes that leave the analyzer as it is.

    Raises:
        ValueError: They name it.
    """
    if ANALYZER in changes:
        raise ValueError(
            f"Expected settings without {ANALYZER!r}, which has to be that of the stored terms; found {changes!r:.80}. "
            "store.index_texts() moves a collection to the newest analyzer."
        )
    return {**settings, **changes}


def with_newest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that name the newest analyzer."""
    return {**settings, ANALYZER: NEWEST.name}


def stems(text: str) -> list[str]:
    """Return the stems of a text's words without stop words, in order.

    Examples:
        >>> stems("The Café’s relational_db; ﬁles RUNNING in 2024")
        ['café', 's', 'relational_db', 'file', 'run', '2024']
        >>> stems("हिन्दी भाषा")
        ['हिन्दी', 'भाषा']
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return [_stem(word[:LONGEST]) for word in _runs(plain) if word not in _STOP_WORDS]


def stems_with_parts(text: str) -> list[str]:
    """Return the stems of a text's words, and after them those of the parts of its identifiers.

    Examples:
        >>> stems_with_parts("HTTPServerError of create_path2")
        ['httpservererror', 'create_path2', 'http', 'server', 'error', 'creat', 'path', '2']
    """
    runs = _RUN.findall(unicodedata.normalize("NFKC", text))
    names = [run[:LONGEST] for run in runs if run.isascii() and _JOINT.search(run, 0, LONGEST)]
    return stems(text) + stems(" ".join(part for name in names for part in _PART.findall(name)))


def visible(text: str) -> str:
    r"""Return a text as Unicode's NFKC without the characters that are not shown.

    A zero-width space is removed, too, and becomes a blank in scripts without spaces, whose words it separates.

    Source: NFKC_Casefold (The Unicode Standard, § 3.13.3), before case folding.

    Examples:
        >>> visible("soft\u00adware \ufb01les zero\u200bwidth")
        'software files zerowidth'
    """
    if text.isascii():
        return text
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", _BETWEEN_WORDS.sub(" ", text)))


def visible_stems_with_parts(text: str) -> list[str]:
    """Return `stems_with_parts` of the text without characters that are not shown; see `visible`."""
    return stems_with_parts(visible(text))


@functools.lru_cache(2**16)
def _stem(word: str) -> str:
    """Return a word's stem; words of two letters ("us", "js") and words with other letters than a to z stay."""
    return _PORTER.stemWord(word) if len(word) > 2 and word.isascii() and word.isalpha() else word


def _runs(plain: str) -> list[str]:
    marks = "" if plain.isascii() else "".join(sorted(one for one in set(plain) if unicodedata.category(one)[0] == "M"))
    return re.findall(rf"\w[\w{marks}]*", plain) if marks else _RUN.findall(plain)


PORTER: Final = TextAnalyzer("porter", stems)
IDENTIFIERS: Final = TextAnalyzer("porter-identifiers", stems_with_parts)
NEWEST: Final = TextAnalyzer("porter-identifiers-2", visible_stems_with_parts)
