"""Tokenization of texts to token ids."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from cde_rag._validation import check_texts
from cde_rag.errors import ModelError

CHARACTERS_A_TOKEN: Final = 32  # characters of a text that are tokenized first, for each token that is read
MARGIN: Final = 8  # tokens beyond what is read, special tokens included, that show that a text is longer
_LONGEST_WORD: Final = 16  # times the characters that a text is cut to; a longer word is cut, too
_WORD_END: Final = re.compile(r"(?<=\S)\s")


class Tokens(NamedTuple):
    """A text as token ids, special tokens included.

    Attributes:
        ids: Token ids, at most the maximum length; a cut text keeps its last one, the separator.
        truncated: True if the text was longer.
    """

    ids: list[int]
    truncated: bool


class TextTokenizer:
    """Tokenizer that cuts and never pads; the same object serves both stages and all threads.

    Args:
        serialised: The JSON of a `tokenizers` tokenizer.

    Raises:
        ModelError: `serialised` is no such JSON.
    """

    def __init__(self, serialised: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(serialised)
        except Exception as error:  # the library raises bare Exceptions
            raise ModelError(f"Expected the JSON of a tokenizer, found: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.serialised = serialised
        self.sha256 = hashlib.sha256(serialised.encode()).hexdigest()

    @property
    def size(self) -> int:
        """One more than the highest id in the vocabulary or among the special tokens."""
        special = self._tokenizer.encode("").ids  # which need not be in the vocabulary
        return max([*self._tokenizer.get_vocab(with_added_tokens=True).values(), *special], default=-1) + 1

    @property
    def special_tokens(self) -> int:
        """Number of tokens that are added to a text, such as [CLS] and [SEP]."""
        return self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def ids(self, text: str) -> list[int]:
        """Return the ids of all tokens of a text of any length, special tokens apart; none of an empty text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def first_id(self, text: str) -> int:
        """Return the id of the first token of a text, special tokens apart.

        Raises:
            ModelError: The text has no token.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids[0]
        except Exception as error:  # the library raises bare Exceptions
            raise ModelError(f"Expected a tokenizer that has a token for {text!r}, found: {error}.") from error

    def __call__(self, texts: Sequence[str], max_length: int, *, prefix: str = "", first: int = 0) -> list[Tokens]:
        """Tokenize a batch of texts.

        Args:
            texts: Texts.
            max_length: Maximum number of tokens of each, prefix and special tokens included.
            prefix: String put before each text.
            first: Position of the first text in the caller's list, for messages.

        Raises:
            CorpusError: A text is empty, blank, or no valid Unicode; the message gives its position.
            TypeError: A text is no str.
        """
        check_texts(texts, first=first)
        cut: list[Tokens] = []
        for encoding in self._encoded([prefix + text for text in texts], max_length, self._tokenizer.encode_batch_fast):
            ids = encoding.ids
            too_long = len(ids) > max_length
            cut.append(Tokens([*ids[: max_length - 1], ids[-1]] if too_long else ids, too_long))
        return cut

    def count(self, ids: Sequence[int]) -> int:
        """Return the tokens of a row, to compare with a model's maximum length."""
        return len(ids)

    def reach(self, texts: Sequence[str], max_length: int) -> list[int]:
        """Return the number of characters of each text that are read, from its start; all if it is not cut.

        Args:
            texts: Texts.
            max_length: Maximum number of tokens of each, special tokens included.

        Raises:
            CorpusError: A text is empty, blank, or no valid Unicode; the message gives its position.
            TypeError: A text is no str.
        """
        check_texts(texts)
        ends: list[int] = []
        encodings = self._encoded(list(texts), max_length, self._tokenizer.encode_batch)
        for text, encoding in zip(texts, encodings, strict=True):
            ends.append(encoding.offsets[max_length - 2][1] if len(encoding.ids) > max_length else len(text))
        return ends

    def _encoded(
        self, texts: list[str], max_length: int, encode: Callable[[list[str]], Sequence[Encoding]]
    ) -> list[Encoding]:
        """Encode texts; of very long ones only a beginning of more than `max_length` tokens.

        A beginning ends at the end of a word, or far after the tokens that are read, so that these are the same as in
        the complete text.
        """
        characters = CHARACTERS_A_TOKEN * max_length
        encodings = list(encode([beginning(text, characters) for text in texts]))
        for place, text in enumerate(texts):
            read = characters
            while len(encodings[place].ids) <= max_length + MARGIN and len(beginning(text, read)) < len(text):
                read *= 4
                (encodings[place],) = encode([beginning(text, read)])
        return encodings


def beginning(text: str, characters: int) -> str:
    """Return a text up to the end of the word at position `characters`; all of a text up to twice as long.

    Text in which no word ends for long, such as base64 or Chinese, is cut all the same. Tokens near the cut may differ
    from those of the complete text; the tokens that are read are thousands of tokens before it.
    """
    if len(text) <= 2 * characters:
        return text
    longest = _LONGEST_WORD * characters
    end = _WORD_END.search(text, characters, longest)
    return text[:longest] if end is None else text[: end.start()]
