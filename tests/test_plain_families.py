"""Families of plain models without torch: vectors are those of sentence-transformers in every runtime, for every
architecture, pooling and head, texts of all lengths, both roles, and any batch."""

import json
from pathlib import Path

import numpy as np
import pytest
from plain_replicas import HEADS, LIMIT, ROLES, TEXT, write_encoder
from sentence_transformers import SentenceTransformer
from tiny import WORDS

from cde_rag import EmbedderOptions, PlainEmbedder
from cde_rag.embedders.contextual import ContextualEmbedder

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
SAME = 0.99999  # cosine, at least, of two computations in float32
RUNTIMES = ("openvino", "onnx")
FEW = ("mean", "cls", "lasttoken", "denses", "weights")
CASES = [("bert", head) for head in HEADS] + [
    (architecture, head) for architecture in ("roberta", "xlm-roberta", "modernbert") for head in FEW
]


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Texts of all lengths, from a letter to one that is cut, and some that are odd."""
    random = np.random.default_rng(seed)
    lengths = np.unique(np.geomspace(1, 3 * LIMIT, count).astype(int)).tolist()
    found = [" ".join(random.choice(WORDS, length)) for length in (lengths * 9)[:count]]
    odd = [
        "x",
        ".",
        "É naïve 東京",
        "  the   river\n bank ",
        "[MASK] <mask>",
        "the <pad><pad> river</s> bank",
        "a" * 300,
        f"{TEXT} " * 400,
    ]
    return [*found, *odd]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def assert_same(found: np.ndarray, expected: np.ndarray, at_least: float = SAME) -> None:
    found, expected = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (found, expected))
    cosines = (found * expected).sum(axis=1)
    assert cosines.min() >= at_least, (cosines.argmin(), cosines.min())


def assert_those_of_sentence_transformers(folder: Path, runtime: str, given: list[str]) -> ContextualEmbedder:
    """Compare both roles, in batches and alone, truncation and the identity."""
    peer = SentenceTransformer(str(folder), device="cpu")
    plain = PlainEmbedder(folder, options=EmbedderOptions(runtime=runtime, mini_batch_size=5))
    assert plain.runtime == runtime
    documents, queries = plain.embed_documents(given), plain.embed_queries(given)
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert_same(documents, peer.encode_document(given, batch_size=7))
    assert_same(queries, peer.encode_query(given, batch_size=4))
    assert np.abs(documents - queries).max() > 1e-2  # prompts act
    assert (documents @ documents.T).min() < 0.95  # and texts
    assert_same(np.concatenate([plain.embed_documents([text]) for text in given[::5]]), documents[::5])
    torch = PlainEmbedder(folder, options=EmbedderOptions(runtime="torch", device="cpu"))
    assert torch.context.identity == plain.context.identity
    np.testing.assert_array_equal(
        plain.embed_passages(given, None).truncated, torch.embed_passages(given, None).truncated
    )
    return plain


@pytest.mark.parametrize(("architecture", "head"), CASES)
def test_encoders(tmp_path: Path, architecture: str, head: str) -> None:
    folder = write_encoder(tmp_path / "model", architecture, head)
    for runtime in RUNTIMES:
        plain = assert_those_of_sentence_transformers(folder, runtime, texts(40))
        assert plain.context.identity.prefixes == ROLES
        assert plain.context.identity.max_length == LIMIT
