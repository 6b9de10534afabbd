"""Names that embedders had in 0.2: each works, and its warning says the new one, at the line that used it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import WORDS

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions, FunctionEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.embedders.plain_vectors import PlainVectors
from cde_rag.embedders.pool import Pool

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
TEXTS = [f"{first} {second}" for first in WORDS[:3] for second in WORDS[:3]]


class Workers(Pool):
    workers = 2

    def embed(self, spec: Any, slices: Any) -> Any:
        raise AssertionError("no passage is embedded here")


def letters(texts: list[str]) -> np.ndarray:
    return np.array([[1 + text.count(letter) for letter in "abcdefgh"] for text in texts], dtype=np.float32)


@pytest.fixture
def plain() -> ContextualEmbedder:
    return FunctionEmbedder(letters, name="letters", mini_batch_size=7)


def warned(call: Callable[[], Any], new: str) -> Any:
    """Call, and return the result; one warning ends with the code to write."""
    with pytest.warns(DeprecationWarning, match="is deprecated, and goes in 1.0") as found:
        result = call()
    (one,) = (one for one in found if one.category is DeprecationWarning)
    assert (str(one.message).partition("Write: ")[2], one.filename) == (new, __file__)
    return result


def test_methods_of_embedders(tiny_model: CDEModel, plain: ContextualEmbedder, tmp_path: Path) -> None:
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=tiny_model, context_size=8)
    null, pool, file = Context.null(tiny_model), Workers(), PlainVectors(tmp_path / "kept.sqlite")
    moved = warned(lambda: embedder.rebound(null), "embedder.with_context(context)")
    assert moved.fingerprint == embedder.with_context(null).fingerprint == null.fingerprint
    assert warned(lambda: embedder.on(pool), "embedder.with_pool(pool)").pool is pool
    kept = warned(lambda: plain.keeping(file), "embedder.with_plain_vectors(vectors)")
    assert warned(lambda: kept.vectors, "embedder.plain_vectors") is kept.plain_vectors is file
    made = warned(lambda: ArithmeticEmbedder.from_corpus(TEXTS, model=plain, vectors=file), "plain_vectors=…")
    assert made.plain_vectors is file


def test_a_copy_has_one_field_changed(tiny_model: CDEModel, plain: ContextualEmbedder, tmp_path: Path) -> None:
    pool, null, file = Workers(), Context.null(tiny_model), PlainVectors(tmp_path / "kept.sqlite")
    options = EmbedderOptions(mini_batch_size=3, pool=pool)
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=tiny_model, context_size=8, options=options)
    for copy in (embedder.with_context(null), embedder.with_pool(pool), ContextualEmbedder(embedder, null)):
        assert (copy.mini_batch_size, copy.pool) == (3, pool)
    assert embedder.with_pool(None).pool is None
    assert (embedder.pool, embedder.context.is_null) == (pool, False)
    assert plain.with_plain_vectors(file).with_pool(pool).plain_vectors is file
    assert plain.plain_vectors is None
    windowed = embedder.context.with_windows(windows=True)
    assert windowed.with_windows(windows=False).fingerprint == embedder.fingerprint != windowed.fingerprint


def test_keywords_of_embedders_are_options(tiny_model: CDEModel) -> None:
    pool = Workers()
    new = "options=EmbedderOptions(mini_batch_size=…, pool=…)"
    made = warned(lambda: ContextualEmbedder.from_corpus(TEXTS, model=tiny_model, mini_batch_size=5, pool=pool), new)
    assert (made.mini_batch_size, made.pool) == (5, pool)
    made = warned(lambda: ContextualEmbedder(tiny_model, made.context, mini_batch_size=4, pool=pool), new)
    assert (made.mini_batch_size, made.pool) == (4, pool)
    given = EmbedderOptions(mini_batch_size=4, pool=pool)
    new = "options=EmbedderOptions(mini_batch_size=…)"
    old: Any = ContextualEmbedder
    made = warned(lambda: old(tiny_model, made.context, options=given, mini_batch_size=6), new)
    assert (made.mini_batch_size, made.pool) == (6, pool)
    with pytest.warns(DeprecationWarning, match=r"options=EmbedderOptions\(dtype=…\)"), pytest.raises(TypeError):
        ContextualEmbedder(tiny_model, made.context, dtype="float32")  # pyright: ignore[reportCallIssue]


def test_options_of_a_given_embedder_are_kept_where_none_are_given(
    tiny_model: CDEModel, plain: ContextualEmbedder
) -> None:
    arithmetic = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.3)
    assert [one.mini_batch_size for one in (plain, arithmetic, plain.with_context(arithmetic.context))] == [7, 7, 7]
    again = ContextualEmbedder.from_corpus(TEXTS, model=plain, options=EmbedderOptions(mini_batch_size=2))
    assert again.mini_batch_size == 2
    assert ContextualEmbedder(tiny_model, Context.null(tiny_model)).mini_batch_size == 32


def test_a_collection_of_texts_has_its_options(tiny_model: CDEModel, tmp_path: Path) -> None:
    options = EmbedderOptions(mini_batch_size=3)
    with Collection.from_texts(TEXTS, store=tmp_path / "papers.faiss", model=tiny_model, options=options) as papers:
        assert papers.embedder.options.mini_batch_size == 3
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model), options=options)
    with Collection.create(tmp_path / "null.faiss", embedder):
        pass
    with Collection.open(tmp_path / "null.faiss", model=embedder) as papers:
        assert papers.embedder.options.mini_batch_size == 3
    with Collection.open(tmp_path / "null.faiss", model=embedder, options=EmbedderOptions(mini_batch_size=9)) as papers:
        assert papers.embedder.options.mini_batch_size == 9
    with pytest.raises(TypeError, match="chosen where a model is loaded"):
        Collection.open(tmp_path / "null.faiss", model=embedder, options=EmbedderOptions(dtype="float32"))


@pytest.mark.usefixtures("unchecked")
def test_an_embedder_by_the_interface_of_0_2_is_refused_with_its_new_name(tiny_model: CDEModel, tmp_path: Path) -> None:
    class Own:
        rebound = None

    with pytest.raises(TypeError, match=r"Rename its method rebound to with_context"):
        Collection.create(tmp_path / "papers.faiss", Own())  # pyright: ignore[reportArgumentType]


def test_new_names_warn_of_nothing(tiny_model: CDEModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        ContextualEmbedder(tiny_model, Context.null(tiny_model), options=EmbedderOptions(mini_batch_size=4))


def test_the_old_and_the_new_name_of_a_keyword_are_refused_together(plain: ContextualEmbedder, tmp_path: Path) -> None:
    given: Any = {
        "vectors": PlainVectors(tmp_path / "one.sqlite"),
        "plain_vectors": PlainVectors(tmp_path / "two.sqlite"),
    }
    with pytest.raises(TypeError, match="Write plain_vectors=… alone"):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, **given)
