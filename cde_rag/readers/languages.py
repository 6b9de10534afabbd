"""Languages of texts, by their script and small words; a bundled model may read English only."""

import re
from typing import Final

_ENOUGH: Final = 2000  # characters of a text that its language is told by
_FEWEST_WORDS: Final = 8  # words from which a language can be told
_WORD: Final = re.compile(r"[^\W\d_]+")
_ENGLISH_WORDS: Final = frozenset(
    "the of and to is that it for you are with this be as have not from or by an was".split()
)
_OTHER_WORDS: Final = frozenset(
    # German, French, Spanish, Italian, Portuguese, Dutch, Polish, Swedish; none that is an English word, too
    "der die das und ist nicht ein eine auf mit den für von sich auch werden le la les des est une pour dans que pas "
    "sur avec sont el los las una por con para es del como più il della che di sono não um uma os do da em het een van "
    "voor niet zijn nie jest się na że och att det som är inte".split()
)
_ASKING: Final = frozenset(  # words of queries; none that is an English word or a usual name, too
    "wie wo wer warum welche welcher ich wir mein meine kann comment où quand pourquoi quel quelle puis cómo dónde "
    "cuándo qué quién puedo posso quando dove onde como hoe waar wanneer ik mijn jak gdzie kiedy jag".split()
)
_ENGLISH_ASKING: Final = frozenset(
    "a i my me we our your in on at how what when where why who which do does can could should if no so die per".split()
)
_LETTERS: Final = frozenset("äöüßãõąęłśźżåøčřšžőű")  # that words of English do not have, but for names


def is_english(text: str) -> bool:
    """Return False if a text is surely in another language than English; code, numbers and short texts are English.

    It is told by another script, or another language's small words.

    Examples:
        >>> is_english("Der Turmfalke ist ein Vogel, der auch in den Städten brütet und nicht zieht.")
        False
        >>> is_english("for der in range(10): print(der)")
        True
    """
    words = [word.lower() for word in _WORD.findall(text[:_ENOUGH])]
    letters = sum(map(len, words))
    latin = sum(character < "\u0250" for word in words for character in word)  # up to IPA: Latin with its accents
    if letters and latin < letters / 2:
        return letters < _FEWEST_WORDS
    if len(words) < _FEWEST_WORDS:
        return True
    ours, others = (sum(word in small for word in words) for small in (_ENGLISH_WORDS, _OTHER_WORDS))
    return others <= max(ours, len(words) / 6)


def is_english_query(query: str) -> bool:
    """Return False if a query, which may have few words, is more likely in another language than English.

    It is less sure than `is_english`: use it where a search has found nothing.

    Examples:
        >>> is_english_query("Wie storniere ich eine gebuchte Lieferung?")
        False
        >>> is_english_query("what is a café")
        True
    """
    words = [word.lower() for word in _WORD.findall(query[:_ENOUGH])]
    latin = sum(character < "\u0250" for word in words for character in word)
    if latin < sum(map(len, words)) / 2:
        return False
    ours = sum(word in _ENGLISH_WORDS or word in _ENGLISH_ASKING for word in words)
    others = sum(word in _OTHER_WORDS or word in _ASKING or not _LETTERS.isdisjoint(word) for word in words)
    return others <= ours
