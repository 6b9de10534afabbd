"""Of a long text only the beginning is tokenized, and what is read of it is what is read of the whole."""

import json
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_model import write_transformer
from tiny import tiny_tokenizer
from tokenizers import Tokenizer

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.plain_embedders import PlainEmbedder
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.models import CDEModel, tokenizer
from cde_rag.models.tokenizer import CHARACTERS_A_TOKEN, TextTokenizer, beginning

LIMIT = 8  # tokens
BUNDLED = CDEModel.from_pretrained("cde-mini", device="cpu").tokenizer
TINY = TextTokenizer(tiny_tokenizer())
PIECES = ["river", "a", "loan ", " ", "\n", "…", "銀行", "ß", "+/", "x" * 150, "é́"]


def whole(subject: TextTokenizer, text: str) -> tuple[list[int], bool, int]:
    """Ids, whether they were cut, and how far the text was read, by a tokenizer that is shown all of it."""
    with mock.patch.object(tokenizer, "beginning", lambda text, _: text):
        return read(subject, text)


def read(subject: TextTokenizer, text: str) -> tuple[list[int], bool, int]:
    (tokens,), (end,) = subject([text], LIMIT), subject.reach([text], LIMIT)
    return tokens.ids, tokens.truncated, end


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 900)), min_size=1, max_size=6))
def test_a_beginning_is_read_as_the_whole_text_is(parts: list[tuple[str, int]]):
    text = "".join(piece * count for piece, count in parts)
    if text.strip():
        for subject in (BUNDLED, TINY):
            assert read(subject, text) == whole(subject, text)


@pytest.mark.parametrize("piece", ["river ", "QmFzZTY0/", "銀行", "。", "a b\n"])
def test_no_more_is_tokenized_than_a_limit_needs(piece: str):
    shown: list[int] = []
    encode = Tokenizer.encode_batch_fast

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(kept, name)

        def encode_batch_fast(self, texts: list[str]) -> object:
            shown.extend(map(len, texts))
            return encode(kept, texts)

    subject = TextTokenizer(BUNDLED._tokenizer.to_str())  # type: ignore[attr-defined]
    kept = subject._tokenizer  # type: ignore[attr-defined]
    subject._tokenizer = Spy()  # type: ignore[attr-defined,assignment]
    subject([piece * 200_000], LIMIT)
    assert sum(shown) <= 4 * 16 * CHARACTERS_A_TOKEN * LIMIT


def test_short_texts_stay_whole():
    assert beginning("a" * 200, 100) == "a" * 200
    assert beginning("a" * 150 + " b" * 100, 100) == "a" * 150
    assert len(beginning("a" * 10_000, 100)) == 1600


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ContextualEmbedder:
    return PlainEmbedder(
        write_transformer(tmp_path_factory.mktemp("plain") / "model"), options=EmbedderOptions(device="cpu")
    )


@pytest.mark.parametrize("piece", ["river bank ", "x", " ", "銀", "river"])
def test_a_plain_model_is_shown_what_it_reads(plain: ContextualEmbedder, piece: str):
    text = "river " + 40_000 * piece
    long_enough = CHARACTERS_A_TOKEN * plain.context.identity.max_length
    assert len(text) > 2 * long_enough
    with mock.patch("cde_rag.models.plain.network.beginning", lambda text, _: text):
        expected, tokens = plain.embed_passages([text], None), plain.count_tokens([text])
    shown: list[int] = []
    model = plain.model._model  # type: ignore[attr-defined]
    lengths = model.lengths

    def spy(texts: list[str], prefix: str) -> list[int]:
        shown.extend(map(len, texts))
        return lengths(texts, prefix)

    with mock.patch.object(model, "lengths", spy):
        found = plain.embed_passages([text], None)
    assert json.dumps(found.vectors.tolist()) == json.dumps(expected.vectors.tolist())
    assert found.truncated.tolist() == expected.truncated.tolist()
    assert plain.count_tokens([text]) == tokens
    if tokens == plain.context.identity.max_length and piece != "x":
        assert max(shown) < len(text)
