"""CDEDocumentStore passes Haystack's own tests, is the same in another process, and embeds as its collection does."""

import warnings
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import CountDocumentsByFilterTest, DocumentStoreBaseExtendedTests
from haystack.utils.filters import document_matches_filter
from haystack_integrations.components.retrievers.cde import CDERetriever
from haystack_integrations.document_stores.cde import CDEDocumentStore

from cde_rag import Collection, ContextualEmbedder, Record
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError, TruncationWarning
from cde_rag.search import searcher

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")


@pytest.fixture
def document_store(tmp_path: Path, model_folder: str):
    store = CDEDocumentStore(str(tmp_path / "papers.faiss"), model=model_folder)
    yield store
    store.close()


class TestDocumentStore(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    """Haystack's tests; embeddings that documents bring are not stored."""

    @staticmethod
    def assert_documents_are_equal(received, expected):
        plain = [replace(document, embedding=None) for document in expected]
        assert received == plain

    @pytest.fixture
    def document_store(self, tmp_path: Path, model_folder: str):
        store = CDEDocumentStore(str(tmp_path / "papers.faiss"), model=model_folder)
        yield store
        store.close()

    def test_write_documents(self, document_store):
        """Without a policy a document that is stored already is an error."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])
        assert document_store.filter_documents() == [document]


def games() -> list[Document]:
    return [
        Document(content=f"rule {part} of game {game}", meta={"game": f"g{game}", "part": part})
        for game in range(20)
        for part in range(4)
    ]


def test_documents_come_back_as_they_were(document_store: CDEDocumentStore) -> None:
    documents = [
        Document(content="text", meta={"a": [1, {"b": None}], "when": "2024-01-31"}),
        Document(id="mine", content="with a blob", blob=ByteStream(b"\x00\xff", mime_type="image/png")),
    ]
    document_store.write_documents(documents)
    assert document_store.filter_documents() == documents
    assert document_store.filter_documents({"field": "id", "operator": "==", "value": "mine"}) == documents[1:]


def test_metadata_are_stored_exactly_or_refused_by_name(document_store: CDEDocumentStore) -> None:
    metadata = {"size": np.float32(0.5), "pages": np.int64(3), "row": np.array([1, 2])}
    document_store.write_documents([Document(content="text", meta=metadata)])
    (stored,) = document_store.filter_documents()
    assert stored.meta == {"size": 0.5, "pages": 3, "row": [1, 2]}
    for value, message in [(float("nan"), "when is nan"), ({1}, "when is of the type set, .*; give a list")]:
        with pytest.raises(CorpusError, match=message):
            document_store.write_documents([Document(content="other", meta={"when": value})])
    assert document_store.count_documents() == 1


def test_a_refused_call_makes_no_collection(tmp_path: Path, model_folder: str) -> None:
    """An empty one would keep its context of these documents, and its `group_by`."""
    store = CDEDocumentStore(str(tmp_path / "papers.faiss"), model=model_folder, group_by="price")
    with pytest.raises(CorpusError, match="its 'price' has to be a string"):
        store.write_documents([Document(content="a fish", meta={"price": 1.5})])
    assert list(tmp_path.iterdir()) == []


def test_documents_of_another_program_are_found_and_kept_by_their_ids(tmp_path: Path, model_folder: str) -> None:
    location = tmp_path / "papers.faiss"
    with Collection.create(location, ContextualEmbedder.from_corpus(["a fish"], model=model_folder)) as made:
        made.add(["a fish", "a bank", "a boat"], ids=["a", "b", "c"])
    store = CDEDocumentStore(str(location), model=model_folder)
    store.write_documents([Document(id="d", content="a river")])
    by_id = {"field": "id", "operator": "in", "value": ["a", "d"]}
    assert [document.id for document in store.filter_documents(by_id)] == ["a", "d"]
    assert store.count_documents_by_filter({"operator": "NOT", "conditions": [by_id]}) == 2
    assert store.update_by_filter({"field": "id", "operator": "==", "value": "a"}, {"seen": True}) == 1
    with pytest.raises(FilterError, match="some are of another program"):
        store.search("fish", 3, "vectors", by_id)
    assert store.delete_by_filter({"field": "id", "operator": "!=", "value": "b"}) == 3
    assert [document.id for document in store.filter_documents()] == ["b"]
    store.write_documents(store.filter_documents(), DuplicatePolicy.OVERWRITE)
    assert len(store.search("fish", 3, "vectors", {"field": "id", "operator": "==", "value": "b"})) == 1
    store.close()


def test_siblings_are_those_of_group_by(tmp_path: Path, model_folder: str) -> None:
    """Vectors are those of the collection's embedder, given parents; without group_by others."""
    vectors = {}
    for group_by in ("game", None):
        store = CDEDocumentStore(str(tmp_path / f"{group_by}.faiss"), model=model_folder, group_by=group_by)
        store.write_documents(games())
        collection = store.collection
        assert collection is not None
        ids = [document.id for document in games()]
        vectors[group_by] = collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint)
        parents = [document.meta["game"] for document in games()] if group_by else None
        expected = collection.embedder.embed_documents([each.content for each in games()], parents=parents)
        np.testing.assert_allclose(vectors[group_by], expected, atol=1e-5)
        store.close()
    assert np.abs(vectors["game"] - vectors[None]).max() > 1e-3


def test_another_process_opens_it_and_a_pipeline_survives_serialisation(tmp_path: Path, model_folder: str) -> None:
    store = CDEDocumentStore(str(tmp_path / "games.faiss"), model=model_folder, group_by="game")
    store.write_documents(games())
    pipeline = Pipeline()
    filters = {"field": "meta.part", "operator": "==", "value": 2}
    pipeline.add_component("retriever", CDERetriever(store, top_k=2, by="words", filters=filters))
    expected = pipeline.run({"retriever": {"query": "rule of game 7"}})["retriever"]["documents"]
    assert expected[0].meta == {"game": "g7", "part": 2}
    assert all(document.score is not None and document.meta["part"] == 2 for document in expected)
    store.close()
    again = Pipeline.loads(pipeline.dumps())
    found = again.run({"retriever": {"query": "rule of game 7"}})["retriever"]["documents"]
    assert found == expected
    retriever = again.get_component("retriever")
    merged = CDERetriever(retriever.document_store, filters=filters, filter_policy="merge")
    both = merged.run("rule", filters={"field": "meta.game", "operator": "==", "value": "g3"})["documents"]
    assert [document.meta for document in both] == [{"game": "g3", "part": 2}]
    assert (
        len(retriever.run("rule of a game", filters={"operator": "AND", "conditions": []}, top_k=7)["documents"]) == 7
    )
    retriever.document_store.close()


@pytest.mark.parametrize("by", ["vectors", "words", "hybrid"])
def test_the_retriever_ranks_as_the_collection(document_store: CDEDocumentStore, by: str) -> None:
    document_store.write_documents(games())
    assert document_store.collection is not None
    expected = [(hit.id, hit.score) for hit in document_store.collection.search("rule 3 of game 11", 5, by=by)]
    found = CDERetriever(document_store, top_k=5, by=by).run("rule 3 of game 11")["documents"]
    assert [(document.id, document.score) for document in found] == expected


def test_the_retriever_hands_on_a_reranker(document_store: CDEDocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortest(pairs: list[tuple[str, str]]) -> list[int]:
        return [-len(text) for _, text in pairs]

    monkeypatch.setattr(searcher, "named_reranker", {"short": shortest}.__getitem__)
    document_store.write_documents(games())
    assert document_store.collection is not None
    expected = [hit.id for hit in document_store.collection.search("rule 3 of game 11", 5, rerank=shortest)]
    retriever = CDERetriever(document_store, top_k=5, rerank="short")
    again = CDERetriever.from_dict(retriever.to_dict())
    for each in (retriever, again):
        assert [document.id for document in each.run("rule 3 of game 11")["documents"]] == expected
    again.document_store.close()


def test_an_empty_store_finds_nothing_and_makes_no_folder(document_store: CDEDocumentStore) -> None:
    assert CDERetriever(document_store).run("anything")["documents"] == []
    assert document_store.write_documents([]) == 0
    assert not Path(document_store.location).exists()


def test_duplicates_within_one_call(document_store: CDEDocumentStore) -> None:
    first, second = Document(id="1", content="first"), Document(id="1", content="second")
    assert document_store.write_documents([first, second], DuplicatePolicy.SKIP) == 1
    assert document_store.filter_documents() == [first]
    assert document_store.write_documents([first, second], DuplicatePolicy.OVERWRITE) == 1
    assert document_store.filter_documents() == [second]


def test_one_moment_is_equal_however_it_is_written(document_store: CDEDocumentStore) -> None:
    """Moments compare by Haystack's own rules: == is >= and <=, != is neither, `in` is some ==."""
    written = ["2025-02-03T12:45:46Z", "2025-02-03 13:45:46+01:00", "2025-02-03T12:45:46.000", "2025-02-04", "no date"]
    documents = [Document(content=f"report {text}", meta={"d": text}) for text in written]
    document_store.write_documents(documents)
    moment = datetime(2025, 2, 3, 12, 45, 46, tzinfo=timezone.utc)
    offset = timezone(timedelta(hours=-5, seconds=12))  # ISO 8601 has no seconds of offset
    for value in (moment, moment.replace(tzinfo=None), moment.astimezone(offset), *written[:3]):

        def found(operator: str, value: object = value) -> list[str]:
            filters = {"field": "meta.d", "operator": operator, "value": value}
            return [document.meta["d"] for document in document_store.filter_documents(filters)]

        assert found("==") == found("in", [value, 5]) == written[:3]
        assert set(found(">=")) & set(found("<=")) == set(written[:3])
        assert found("!=") == found("not in", ["x", value]) == written[3:]
    for value in ("no date", 5, True, ""):
        filters = {"field": "meta.d", "operator": "==", "value": value}
        expected = [each for each in documents if document_matches_filter(filters, each)]
        assert document_store.filter_documents(filters) == expected


def test_any_key_can_be_filtered(document_store: CDEDocumentStore) -> None:
    keys = ["author.name", "and", "or", "not", "", "$in", "eq", "meta.x", "operator"]
    documents = [Document(content=f"of {key}", meta={key: 1}) for key in keys]
    document_store.write_documents(documents)
    for key, document in zip(keys, documents, strict=True):
        filters = {"field": f"meta.{key}", "operator": "==", "value": 1}
        assert document_store.filter_documents(filters) == [document]


@pytest.mark.parametrize("again", ["same", "changed", "without"])
def test_records_with_titles_come_and_go_unchanged(tmp_path: Path, model_folder: str, again: str) -> None:
    """A collection made by other means: its titles are metadata of documents, and no call loses one."""
    location = tmp_path / "papers.faiss"
    embedder = ContextualEmbedder.from_corpus([str(game.content) for game in games()], model=model_folder)
    records = [Record("a", "a fish", "Rivers", {"y": 1}), Record("b", "a bank", "Loans", {"title": "mine", "y": 1})]
    with Collection.create(location, embedder) as made:
        made.add_records(records)
    store = CDEDocumentStore(str(location), model=model_folder)
    assert store.collection is not None
    documents = store.filter_documents()
    assert [document.meta for document in documents] == [{"title": "Rivers", "y": 1}, {"title": "mine", "y": 1}]
    if again == "changed":
        documents[0].meta["title"] = "Seas"
    if again == "without":
        del documents[0].meta["title"]
    store.write_documents(documents, DuplicatePolicy.OVERWRITE)
    assert store.update_by_filter({"field": "meta.y", "operator": "==", "value": 1}, {"seen": True}) == 2
    found = store.collection.get(["a", "b"])
    assert [(record.title, record.text) for record in found] == [
        ("Seas" if again == "changed" else "Rivers", "a fish"),
        ("Loans", "a bank"),
    ]
    assert [{key: value for key, value in record.metadata.items() if key != "_haystack"} for record in found] == [
        {"y": 1, "seen": True},
        {"title": "mine", "y": 1, "seen": True},
    ]
    store.close()


@pytest.mark.parametrize(
    "everything",
    [
        {},
        None,
        {"operator": "AND", "conditions": []},
        {"operator": "AND", "conditions": [{"operator": "AND", "conditions": []}]},
        {"operator": "NOT", "conditions": [{"operator": "OR", "conditions": []}]},
        {"field": "meta.part", "operator": "not in", "value": []},
    ],
)
def test_nothing_is_not_everything(document_store: CDEDocumentStore, everything: dict | None) -> None:
    document_store.write_documents(games())
    with pytest.raises(FilterError, match="delete_all_documents"):
        document_store.delete_by_filter(everything)  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="delete_all_documents"):
        document_store.update_by_filter(everything, {"seen": True})  # type: ignore[arg-type]
    document_store.delete_documents([])
    assert document_store.filter_documents() == games()
    with pytest.raises(ValueError, match="at least 1, not 0"):
        CDERetriever(document_store).run("rule", top_k=0)
    with pytest.raises(ValueError, match="'_haystack' is reserved"):
        document_store.update_by_filter({"field": "meta.part", "operator": "==", "value": 1}, {"_haystack": {}})
    with pytest.raises(ValueError, match="takes a dict of metadata, found None"):
        document_store.update_by_filter({"field": "meta.part", "operator": "==", "value": 1}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("year", "mapping"),
        ({"operator": "AND", "conditions": {"field": "a"}}, "list of conditions"),
        ({"operator": "AND", "conditions": ["a"]}, "mapping"),
        ({"field": 5, "operator": "==", "value": 1}, "name of a field"),
        ({"field": "meta.a", "operator": ["=="], "value": 1}, "expected one of ==, !="),
        ({"field": "meta.a", "operator": "==", "value": [1]}, "where.a"),
        ({"field": "content", "operator": "==", "value": "x"}, "CDERetriever"),
        ({"field": "meta.a", "operator": "like", "value": "x"}, "expected one of ==, !="),
        ({"operator": "XOR", "conditions": []}, "AND, OR or NOT"),
        ({"field": "meta.a", "operator": "==", "value": object()}, "a"),
    ],
)
def test_malformed_filters(document_store: CDEDocumentStore, filters: dict, message: str) -> None:
    document_store.write_documents(games()[:1])
    with pytest.raises(FilterError, match=message):
        document_store.filter_documents(filters)
    with pytest.raises(FilterError, match="delete_all_documents"):
        document_store.delete_by_filter({})


def test_documents_without_text_and_reserved_keys_are_refused(document_store: CDEDocumentStore) -> None:
    with pytest.raises(ValueError, match="expected text as content"):
        document_store.write_documents([Document(blob=ByteStream(b"x"))])
    with pytest.raises(ValueError, match="'_haystack' is reserved"):
        document_store.write_documents([Document(content="x", meta={"_haystack": 1})])
    with pytest.raises(TypeError, match="expects a CDEDocumentStore"):
        CDERetriever("papers.faiss")  # type: ignore[arg-type]


def test_long_documents_are_cut_with_the_splitters_setting(document_store: CDEDocumentStore) -> None:
    with pytest.warns(
        TruncationWarning, match=r'1 of 81 texts .*DocumentSplitter\(split_by="word", split_length=\d+\)'
    ) as told:
        document_store.write_documents([*games(), Document(content="money " * 100)])
    assert len(told) == 1  # and none of the core's


def test_long_documents_are_read_in_windows_where_asked_for(tmp_path: Path, model_folder: str) -> None:
    """Vectors are the core's; another process, which says nothing of windows, has them too."""
    location = str(tmp_path / "games.faiss")
    given = [*games(), Document(content=" ".join(str(game.content) for game in games()), meta={"game": "g3"})]
    texts = [str(each.content) for each in given]
    core = ContextualEmbedder.from_corpus(texts, model=model_folder, windows=True)
    expected = core.embed_documents(texts, parents=[each.meta["game"] for each in given])
    store = CDEDocumentStore(location, model=model_folder, group_by="game", windows=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        store.write_documents(given)
    store.close()
    again = CDEDocumentStore(location, model=model_folder, group_by="game")
    assert again.collection is not None
    found = again.collection.store.vectors([each.id for each in given], fingerprint=core.fingerprint)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    again.close()
    with pytest.raises(StoreError, match="made with group_by='game', not 'page'"):
        CDEDocumentStore(location, model=model_folder, group_by="page").write_documents(given)


def test_windows_that_a_collection_has_not_are_refused_until_it_is_moved(tmp_path: Path, model_folder: str) -> None:
    location = str(tmp_path / "games.faiss")
    cut = CDEDocumentStore(location, model=model_folder)
    cut.write_documents(games())
    with pytest.raises(ContextMismatchError, match=r"leave windows out, or move .*recontextualize\(windows=True\)"):
        CDEDocumentStore(location, model=model_folder, windows=True).count_documents()
    assert cut.collection is not None
    cut.collection.recontextualize(windows=True)
    cut.close()
    assert CDEDocumentStore(location, model=model_folder, windows=True).count_documents() == 80
