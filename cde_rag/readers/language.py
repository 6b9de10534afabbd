"""Language of texts, as far as it matters to a model of English: another script, or another language's small words."""

import re
from typing import Final

_READ: Final = 2000  # characters of a text that are looked at
_FEWEST: Final = 8  # words from which a language can be told
_WORD: Final = re.compile(r"[^\W\d_]+")
_ENGLISH: Final = frozenset("the of and to is that it for you are with this be as have not from or by an was".split())
_OTHERS: Final = frozenset(
    # German, French, Spanish, Italian, Portuguese, Dutch, Polish, Swedish; none that is an English word, too
    "der die das und ist nicht ein eine auf mit den für von sich auch werden le la les des est une pour dans que pas "
    "sur avec sont el los las una por con para es del como più il della che di sono não um uma os do da em het een van "
    "voor niet zijn nie jest się na że och att det som är inte".split()
)


def is_english(text: str) -> bool:
    """Return False if a text is surely in another language than English; code, numbers and short texts are English.

    Example:
        >>> is_english("Der Turmfalke ist ein Vogel, der auch in den Städten brütet und nicht zieht.")
        False
        >>> is_english("for der in range(10): print(der)")
        True
    """
    words = [word.lower() for word in _WORD.findall(text[:_READ])]
    letters = sum(map(len, words))
    latin = sum(character < "\u0250" for word in words for character in word)  # up to IPA: Latin with its accents
    if letters and latin < letters / 2:
        return letters < _FEWEST
    if len(words) < _FEWEST:
        return True
    ours, others = (sum(word in small for word in words) for small in (_ENGLISH, _OTHERS))
    return others <= max(ours, len(words) / 6)
