"""Training pairs from an unlabelled corpus: a title, heading, sentence or keywords as query, the text as document."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cde_rag_training.adapt.sections import Section
from cde_rag_training.data.alternative_queries import KeywordQueries
from cde_rag_training.data.pairs import Pair

KINDS = {  # of a query; a section is asked for by the first that it gives ground for
    "title": "a title that only one text has → the text",
    "heading": "page: heading → the section",
    "sentence": "the first sentence → the rest",
    "keywords": "some of the rarer words → the text",
}
SOURCE = "corpus"  # of all pairs
FEWEST_WORDS = 8  # of a text that is asked for
LONGEST_QUERY = 40  # words
EXAMPLES = 10

_FIRST_SENTENCE = re.compile(r"(.+?[.!?])\s+(.+)", flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asked:
    """Section of a document with a query made for it.

    Attributes:
        section: The relevant section.
        kind: Kind of query, one of `KINDS`.
        query: The query.
        text: The section's text without the part that became the query, and without its title.
        shown: That text as a collection embeds it: with its title, unless the title is the query.
    """

    section: Section
    kind: str
    query: str
    text: str
    shown: str


@dataclass(frozen=True)
class PairReport:
    """Statistics of the pairs made from a corpus.

    Attributes:
        made: Pairs of each kind.
        dropped: For each reason, how many sections make no pair.
        examples: At most ten pairs, spread over the corpus.
    """

    made: Mapping[str, int]
    dropped: Mapping[str, int]
    examples: tuple[Asked, ...]


def without_repeated(found: Iterable[Section]) -> tuple[list[Section], int]:
    """Return the first section of each text and the number of repeats; case and white space are ignored."""
    kept: dict[str, Section] = {}
    count = 0
    for section in found:
        kept.setdefault(" ".join(section.text.lower().split()), section)
        count += 1
    return list(kept.values()), count - len(kept)


def ask(sections: Sequence[Section], *, seed: int) -> list[Asked | None]:
    """Make a query for each section, of the first kind that applies; None if none does.

    Titles and headings shared by several sections identify none of them; for these sections the query is the first
    sentence or keywords, alternately.

    Args:
        sections: Sections of one corpus.
        seed: Random seed of the keywords.
    """
    keywords = KeywordQueries([section.text for section in sections])
    named = [_named(section) for section in sections]
    titles = Counter(section.title for section in sections)
    often = Counter(query.lower() for _, query in named)
    asked: list[Asked | None] = []
    for number, (section, (kind, query)) in enumerate(zip(sections, named, strict=True)):
        alone = often[query.lower()] == 1 and (kind == "heading" or section.heading or titles[section.title] == 1)
        candidates = [_by_name(section, kind, query)] if query and alone else []
        random = np.random.default_rng([seed, number])
        others = [_by_sentence(section), _by_keywords(section, keywords, random)]
        candidates += others if number % 2 else others[::-1]
        asked.append(next((one for one in candidates if one is not None and usable(one)), None))
    return asked


def usable(asked: Asked) -> bool:
    """Return True if the query has letters or digits and at most `LONGEST_QUERY` words, and the text enough words."""
    words = asked.query.split()
    has_letters = any(character.isalnum() for character in asked.query)
    return has_letters and len(words) <= LONGEST_QUERY and len(asked.text.split()) >= FEWEST_WORDS


def report(asked: Sequence[Asked], dropped: Mapping[str, int]) -> PairReport:
    """Summarise the pairs, with examples at equal distances."""
    made = Counter(one.kind for one in asked)
    places = np.linspace(0, len(asked) - 1, min(EXAMPLES, len(asked))).astype(np.int64).tolist()
    return PairReport(
        made={kind: made[kind] for kind in KINDS if made[kind]},
        dropped={reason: count for reason, count in dropped.items() if count},
        examples=tuple(asked[place] for place in places),
    )


def to_pairs(asked: Sequence[Asked]) -> list[Pair]:
    """Convert to pairs of one source and domain; pairs of one parent share its name (its title if it has one)."""
    sizes = Counter(one.section.parent for one in asked)
    return [
        Pair(
            query=one.query,
            document=one.text,
            source=SOURCE,
            domain=SOURCE,
            parent=(one.section.title or one.section.parent) if sizes[one.section.parent] > 1 else "",
        )
        for one in asked
    ]


def _named(section: Section) -> tuple[str, str]:
    """Return kind and query by a section's heading or title; the query is empty if it has neither."""
    if section.heading and section.heading.lower() != section.title.lower():
        return "heading", f"{section.title}: {section.heading}" if section.title else section.heading
    return "title", section.title or section.heading


def _by_name(section: Section, kind: str, query: str) -> Asked:
    if kind == "heading":
        return Asked(section, kind, query, section.text, section.whole)
    text = section.text.removeprefix(query).lstrip(" \n\t:.–-")
    return Asked(section, kind, query, text, text)


def _by_sentence(section: Section) -> Asked | None:
    found = _FIRST_SENTENCE.match(section.text)
    if found is None:
        return None
    sentence, rest = " ".join(found[1].split()), found[2]
    if len(sentence.split()) < FEWEST_WORDS // 2:
        return None
    return Asked(section, "sentence", sentence, rest, f"{section.title} {rest}" if section.title else rest)


def _by_keywords(section: Section, keywords: KeywordQueries, random: np.random.Generator) -> Asked | None:
    query = keywords.draw(section.text, random)
    return None if query is None else Asked(section, "keywords", query, section.text, section.whole)
