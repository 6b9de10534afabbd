"""English words without their endings, by Porter's algorithm.

Source: Porter (1980), An algorithm for suffix stripping, as published, but that words of two letters stay ("us", "js").
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final

_VOWELS: Final = frozenset("aeiou")
_SECOND: Final = (  # endings that become others where something is left in front, the longest first
    *(("ational", "ate"), ("ization", "ize"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    *(("tional", "tion"), ("biliti", "ble"), ("entli", "ent"), ("ousli", "ous"), ("ation", "ate"), ("alism", "al")),
    *(("aliti", "al"), ("iviti", "ive"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("alli", "al")),
    *(("abli", "able"), ("ator", "ate"), ("eli", "e")),
)
_THIRD: Final = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ness", ""), ("ful", "")),
)
_FOURTH: Final = tuple(
    (ending, "") for ending in "ement ance ence able ible ment ant ent ism ate iti ous ive ize ion al er ic ou".split()
)


def stem(word: str) -> str:
    """Return the stem of a word; a word with other letters than a to z is returned unchanged.

    Example:
        >>> [stem(word) for word in ("relational", "caresses", "hopping", "sky", "über")]
        ['relat', 'caress', 'hop', 'sky', 'über']
    """
    if len(word) < 3 or not (word.isascii() and word.isalpha() and word.islower()):
        return word
    for step in (_plural, _past, _y, _second, _third, _fourth, _last):
        word = step(word)
    return word


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ed", "ing"):
        if word.endswith(ending):
            left = word[: -len(ending)]
            return _mended(left) if _has_vowel(left) else word
    return word


def _mended(word: str) -> str:
    """Repair a word after the removal of "ed" or "ing"."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _doubled(word) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _short(word) else word


def _y(word: str) -> str:
    return word[:-1] + "i" if word[-1] == "y" and _has_vowel(word[:-1]) else word


def _second(word: str) -> str:
    return _replaced(word, _SECOND, lambda left, _: _measure(left) > 0)


def _third(word: str) -> str:
    return _replaced(word, _THIRD, lambda left, _: _measure(left) > 0)


def _fourth(word: str) -> str:
    def long(left: str, ending: str) -> bool:
        return _measure(left) > 1 and (ending != "ion" or left[-1] in "st")

    return _replaced(word, _FOURTH, long)


def _last(word: str) -> str:
    if word[-1] == "e":
        left = word[:-1]
        measure = _measure(left)
        if measure > 1 or (measure == 1 and not _short(left)):
            word = left
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _replaced(word: str, endings: Sequence[tuple[str, str]], allowed: Callable[[str, str], bool]) -> str:
    """Replace a word's ending, the first that matches, if allowed."""
    for ending, new in endings:
        if word.endswith(ending):
            left = word[: -len(ending)]
            return left + new if allowed(left, ending) else word
    return word


def _consonants(word: str) -> list[bool]:
    """Return for each letter True if it is a consonant; y is one at the start and after a vowel."""
    found: list[bool] = []
    for letter in word:
        found.append(not found or not found[-1] if letter == "y" else letter not in _VOWELS)
    return found


def _measure(word: str) -> int:
    """Count the sequences of a vowel followed by a consonant."""
    kinds = _consonants(word)
    return sum(second and not first for first, second in itertools.pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _doubled(word: str) -> bool:
    """Return True if a word ends with a doubled consonant."""
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _short(word: str) -> bool:
    """Return True if a word ends with consonant, vowel and consonant, the last none of w, x and y."""
    return _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"
