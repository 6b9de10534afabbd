"""CDEDocumentEmbedder and CDETextEmbedder: one context in a file, siblings by group_by, restored from a dict."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack_integrations.components.embedders.cde import CDEDocumentEmbedder, CDETextEmbedder

from cde_rag import Context, ContextualEmbedder
from cde_rag.errors import ContextMismatchError, ContextMissingError, TruncationWarning


def documents(count: int = 80) -> list[Document]:
    return [
        Document(content=f"note {n} on dates", meta={"page": f"p{n // 4}", "title": f"Page {n // 4}"})
        for n in range(count)
    ]


@pytest.fixture
def context(tmp_path: Path) -> str:
    return str(tmp_path / "notes.context.safetensors")


def vectors(found: list[Document]) -> np.ndarray:
    return np.array([document.embedding for document in found], dtype=np.float32)


@pytest.mark.parametrize("group_by", ["page", None])
def test_vectors_are_those_of_the_context_with_siblings(context: str, model_folder: str, group_by: str | None) -> None:
    given = documents()
    result = CDEDocumentEmbedder(context, model=model_folder, group_by=group_by).run(given)
    embedder = ContextualEmbedder(model_folder, Context.load(context))
    parents = [document.meta["page"] for document in given] if group_by else None
    expected = embedder.embed_documents([str(document.content) for document in given], parents=parents)
    np.testing.assert_allclose(vectors(result["documents"]), expected, atol=1e-6)
    assert result["meta"]["fingerprint"] == embedder.fingerprint
    assert [document.id for document in result["documents"]] == [document.id for document in given]
    assert all(document.embedding is None for document in given)


def test_numbers_group_like_their_digits(context: str, model_folder: str) -> None:
    given = documents()
    numbered = [Document(content=each.content, meta={"page": int(each.meta["page"][1:])}) for each in given]
    embedder = CDEDocumentEmbedder(context, model=model_folder, group_by="page")
    named = vectors(embedder.run(given)["documents"])
    np.testing.assert_array_equal(vectors(embedder.run(numbered)["documents"]), named)


def test_groups_are_of_any_field_and_not_of_an_empty_value(context: str, model_folder: str) -> None:
    given = documents()
    dotted = [Document(content=each.content, meta={"in.page": each.meta["page"]}) for each in given]
    nested = [Document(content=each.content, meta={"in": {"page": each.meta["page"]}}) for each in given]
    expected = vectors(CDEDocumentEmbedder(context, model=model_folder, group_by="page").run(given)["documents"])
    by_field = CDEDocumentEmbedder(context, model=model_folder, group_by="in.page")
    for some in (dotted, nested):
        np.testing.assert_array_equal(vectors(by_field.run(some)["documents"]), expected)
    alone = vectors(CDEDocumentEmbedder(context, model=model_folder).run(given)["documents"])
    empty = [Document(content=each.content, meta={"in.page": ""}) for each in given]
    np.testing.assert_allclose(vectors(by_field.run(empty)["documents"]), alone, atol=1e-6)
    with pytest.raises(ValueError, match="group_by is empty"):
        CDEDocumentEmbedder(context, group_by="")


def test_siblings_change_the_vectors(context: str, model_folder: str) -> None:
    alone, given = (
        vectors(CDEDocumentEmbedder(context, model=model_folder, group_by=key).run(documents())["documents"])
        for key in (None, "page")
    )
    assert np.abs(alone - given).max() > 1e-3


def test_later_runs_and_queries_take_the_stored_context(context: str, model_folder: str) -> None:
    first = CDEDocumentEmbedder(context, model=model_folder).run(documents())
    later = CDEDocumentEmbedder(context, model=model_folder).run(documents(1) + documents()[:3])
    np.testing.assert_allclose(vectors(later["documents"])[1:], vectors(first["documents"])[:3], atol=1e-5)
    query = CDETextEmbedder(context, model=model_folder).run("note 7 on dates")
    expected = ContextualEmbedder(model_folder, Context.load(context)).embed_queries(["note 7 on dates"])[0]
    np.testing.assert_allclose(np.array(query["embedding"]), expected, atol=1e-6)
    assert query["meta"] == first["meta"] == later["meta"]


def test_metadata_is_embedded_in_front(context: str, model_folder: str) -> None:
    CDEDocumentEmbedder(context, model=model_folder).run(documents())
    fields = ["title", "none", "rating", "open", "null", "empty"]
    given = [
        replace(each, meta={**each.meta, "rating": 0, "open": False, "null": None, "empty": ""})
        for each in documents(4)
    ]
    titled = CDEDocumentEmbedder(context, model=model_folder, meta_fields_to_embed=fields).run(given)
    plain = CDEDocumentEmbedder(context, model=model_folder).run(
        [Document(content=f"{each.meta['title']}\n0\nFalse\n{each.content}") for each in documents(4)]
    )
    np.testing.assert_allclose(vectors(titled["documents"]), vectors(plain["documents"]), atol=1e-6)


def test_a_pipeline_with_them_survives_serialisation(context: str, model_folder: str) -> None:
    pipeline = Pipeline()
    embedder = CDEDocumentEmbedder(context, model=model_folder, group_by="page", batch_size=8, seed=3, windows=True)
    pipeline.add_component("documents", embedder)
    pipeline.add_component("query", CDETextEmbedder(context, model=model_folder))
    again = Pipeline.loads(pipeline.dumps())
    assert again.get_component("documents").to_dict() == embedder.to_dict()
    expected = embedder.run(documents())["documents"]
    found = again.run({"documents": {"documents": documents()}, "query": {"text": "note 7"}})
    np.testing.assert_allclose(vectors(found["documents"]["documents"]), vectors(expected), atol=1e-6)
    assert len(found["query"]["embedding"]) == vectors(expected).shape[1]


def test_long_texts_are_cut_with_the_splitters_setting(context: str, model_folder: str) -> None:
    given = [*documents(), Document(content="money " * 100)]
    embedder = CDEDocumentEmbedder(context, model=model_folder)
    expected = r'1 of 81 texts exceed .* of tiny and .*DocumentSplitter\(split_by="word", split_length=\d+\)'
    with pytest.warns(TruncationWarning, match=expected) as told:
        embedder.run(given)
    assert [Path(each.filename) for each in told] == [Path(__file__)]  # once, at the user's line


@pytest.mark.parametrize("group_by", ["page", None])
def test_long_texts_are_read_in_windows_where_asked_for(context: str, model_folder: str, group_by: str | None) -> None:
    """The vectors are the core's; later runs and queries read the context's file, which says how."""
    long = " ".join(f"note {n} on dates and rivers" for n in range(30))
    given = [*documents(), Document(content=long, meta={"page": "p3"})]
    texts = [str(document.content) for document in given]
    parents = [document.meta["page"] for document in given] if group_by else None
    core = ContextualEmbedder.from_corpus(texts, model=model_folder, windows=True)
    embedder = CDEDocumentEmbedder(context, model=model_folder, group_by=group_by, windows=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        first = embedder.run(given)
        later = CDEDocumentEmbedder(context, model=model_folder, group_by=group_by).run(given)
        query = CDETextEmbedder(context, model=model_folder).run(long)
    assert first["meta"]["fingerprint"] == core.fingerprint == query["meta"]["fingerprint"]
    expected = core.embed_documents(texts, parents=parents)
    for result in (first, later):
        np.testing.assert_allclose(vectors(result["documents"]), expected, atol=1e-5)
    np.testing.assert_allclose(np.array(query["embedding"]), core.embed_queries([long])[0], atol=1e-5)


def test_windows_that_the_context_has_not_are_refused(context: str, model_folder: str) -> None:
    CDEDocumentEmbedder(context, model=model_folder).run(documents())
    with pytest.raises(ContextMismatchError, match="leave windows out, or name another file"):
        CDEDocumentEmbedder(context, model=model_folder, windows=True).run(documents())


def test_bad_input_is_an_error_that_names_the_remedy(context: str, model_folder: str) -> None:
    embedder = CDEDocumentEmbedder(context, model=model_folder)
    with pytest.raises(ContextMissingError, match="no document to sample one from"):
        embedder.run([])
    with pytest.raises(ContextMissingError):
        CDETextEmbedder(context, model=model_folder).run("a query")
    with pytest.raises(TypeError, match="CDETextEmbedder"):
        embedder.run("a query")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="CDEDocumentEmbedder"):
        CDETextEmbedder(context, model=model_folder).run(documents())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected text as content"):
        embedder.run([*documents(), Document(content=" ")])
