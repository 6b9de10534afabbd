"""The lines that newcomers write first: from texts, under other libraries' names, with filters that name no field."""

import copy
import re
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from intact import damages
from tiny import WORDS

from cde_rag import Collection, ContextualEmbedder
from cde_rag.errors import CorpusError, SmallContextWarning, StoreError, UnknownFieldWarning, counted
from cde_rag.indexing import upsert
from cde_rag.records import Record, chunks
from cde_rag.search.searcher import fields_of

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
TEXTS = [f"{WORDS[i]} {WORDS[-1 - i]}" for i in range(20)]


@pytest.fixture
def notes(tiny_folder: str) -> Collection:
    return Collection.from_texts(TEXTS, model=tiny_folder, metadata=[{"year": 2000 + i} for i in range(20)])


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tiny import tiny_network, tiny_tokenizer

    from cde_rag.models.one_way import checkpoint as checkpoints

    folder = tmp_path_factory.mktemp("tiny")
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return str(folder)


def test_texts_without_a_store_are_kept_as_long_as_the_collection(notes: Collection):
    assert notes.count() == 20
    assert notes.search(TEXTS[3], 1, by="words")[0].text == TEXTS[3]
    assert len(notes.search(TEXTS[3], 3)) == 3
    folder = Path(repr(notes.store).split("'")[1])
    assert folder.is_dir()
    notes.close()
    assert notes.count() == 20  # closing releases files, and deletes nothing
    notes.close()
    del notes


def test_a_temporary_folder_goes_with_its_store():
    import gc

    from cde_rag.stores.kinds import temporary_store

    store = temporary_store()
    folder = Path(repr(store).split("'")[1]).parent
    assert folder.is_dir()
    del store
    gc.collect()
    assert not folder.exists()


def test_texts_in_a_folder_equal_create_and_add(tmp_path: Path, tiny_folder: str):
    place = tmp_path / "notes.faiss"
    made = Collection.from_texts(TEXTS, store=place, model=tiny_folder, ids=map(str, range(20)), titles=["A"] * 20)
    hits = made.search("river", 5)
    made.close()
    with Collection.open(place, model=tiny_folder) as opened:
        assert opened.search("river", 5) == hits
        assert hits[0].title == "A"
    with pytest.raises(StoreError, match=r"found one in .*Collection\.open"):
        Collection.from_texts(TEXTS, store=place, model=tiny_folder)


def test_bad_texts_leave_nothing_behind(tmp_path: Path, tiny_folder: str):
    with pytest.raises(CorpusError, match="empty or blank"):
        Collection.from_texts([*TEXTS, " "], store=tmp_path / "notes.faiss", model=tiny_folder)
    with pytest.raises(CorpusError, match="The id '1' stands at position 0 and, with another text, at 1"):
        Collection.from_texts(["a", "b"], store=tmp_path / "notes.faiss", ids=["1", "1"], model=tiny_folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "named", "meant"),
    [
        ("search", "filter", "where"),
        ("search", "top_k", "k"),
        ("search", "limit", "k"),
        ("search", "n_results", "k"),
        ("search_batch", "top_k", "k"),
        ("search_groups", "limit", "k"),
        ("search_diverse", "fetch_k", "candidates"),
        ("add", "metadatas", "metadata"),
        ("delete", "filter", "where"),
        ("searcher", "mode", "by"),
    ],
)
def test_a_keyword_of_another_library_is_answered_with_ours(notes: Collection, call: str, named: str, meant: str):
    with pytest.raises(TypeError, match=f"^{call} has no argument '{named}': write {meant}=… for it"):
        getattr(notes, call)("river", **{named: 3})


def test_a_misspelt_keyword_is_answered_with_the_right_one(notes: Collection):
    with pytest.raises(TypeError, match="search has no argument 'offfset': write offset=… for it"):
        notes.search("river", offfset=1)  # pyright: ignore[reportCallIssue]


def test_an_unknown_keyword_is_answered_with_those_that_there_are(notes: Collection):
    with pytest.raises(TypeError, match="no argument 'colour': it takes query, k, by, where"):
        notes.search("river", colour=1)  # pyright: ignore[reportCallIssue]


def test_a_wrong_field_is_answered_with_the_commonest_ones(tmp_path: Path, tiny_folder: Path) -> None:
    """The first records may be parts of a notebook, with fields that no others have."""
    cells = [{"source": "a.ipynb", "cell": n} for n in range(2)]
    pages = [{"source": "b.md", "line": n, "author": {"name": "Ann"}} for n in range(5)]
    texts = [f"river {n}" for n in range(7)]
    with Collection.from_texts(texts, metadata=[*cells, *pages], store=tmp_path / "p", model=tiny_folder) as made:
        expected = "The commonest fields: 'source', 'author', 'author.name', 'line', 'cell'"
        with pytest.warns(UnknownFieldWarning, match=f"'yaer' of the filter. {expected}"):
            made.search("river", where={"yaer": 1})


def test_a_field_that_no_record_has_is_warned_of_at_the_callers_line(notes: Collection):
    for search, name in (
        (notes.search, "yaer"),
        (notes.searcher("words").search, "yeer"),
        (notes.searcher("hybrid").search, "eyar"),
    ):
        with pytest.warns(
            UnknownFieldWarning, match=f"No record has the field '{name}' of the filter. The commonest fields: 'year'"
        ) as told:
            assert search("river", where={name: 2003}) == []
        assert [warning.filename for warning in told] == [__file__]
    with pytest.warns(UnknownFieldWarning, match="month"):
        notes.search_batch(["river"], where={"or": [{"month": 1}, {"year": 1}]})
    with pytest.warns(UnknownFieldWarning, match="colour"):
        notes.search_groups("river", group_by="year", where={"colour": "red"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert notes.search("river", where={"year": 1900}) == []  # the field is there, the value is not
        assert len(notes.search("river", where={"year": 2003})) == 1
        assert notes.search("river", where={"yaer": 2003}) == []  # it was warned of
        assert len(notes.search("river", where={"yaer": {"exists": False}}, k=20)) == 20


def test_the_fields_of_a_filter():
    assert fields_of({"a": 1, "and": [{"b": 2}, {"not": {"or": [{"a": 1}, {"c.d": 2}]}}]}) == ["a", "b", "c.d"]


def test_progress_counts_the_records_of_the_call_and_no_siblings_that_are_embedded_again(
    tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
):
    """Ten more passages of a book change the siblings of its first ones, which come first."""
    monkeypatch.setattr(upsert, "FIRST_PART", 4)
    monkeypatch.setattr(upsert, "SMALLEST_PART", 4)
    monkeypatch.setattr(upsert, "PART_S", 0.0)
    notes = Collection.create(
        tmp_path / "notes.faiss", ContextualEmbedder.from_corpus(TEXTS, model=tiny_folder), parent_key="book"
    )
    told: list[tuple[int, int]] = []
    for part in (slice(10), slice(10, 20)):
        notes.add(
            TEXTS[part],
            ids=list(map(str, range(20)))[part],
            metadata=[{"book": "one"}] * 10,
            on_progress=lambda progress: told.append((progress.done, notes.count())),
        )
    first = told.index((10, 10)) + 1
    assert all(done == count for done, count in told[:first])
    assert all(done == count - 10 for done, count in told[first:])
    assert [done for done, _ in told[first:]].count(0) >= 1  # the first writes are of siblings


def test_one_book_of_three_thousand_passages_is_one_chunk():
    """Each passage is embedded once: those of an earlier chunk get new siblings, and are embedded again."""
    book = [Record(str(number), "text", "", {"book": "one"}) for number in range(3000)]
    assert [len(chunk) for chunk in chunks(book, "book")] == [3000]


@pytest.mark.filterwarnings("default")
def test_warnings_point_at_the_callers_line(tiny_folder: str):
    with pytest.warns(SmallContextWarning) as told:
        Collection.from_texts(TEXTS, model=tiny_folder)
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (1, "query", "1 query"),
        (2, "query", "2 queries"),
        (0, "passage", "0 passages"),
        (1, "hard negative", "1 hard negative"),
        (2140, "day", "2,140 days"),
    ],
)
def test_a_number_in_a_message_has_its_noun(number: int, noun: str, words: str):
    assert counted(number, noun) == words


def test_a_small_context_counts_documents_or_passages_as_they_are(tmp_path: Path, tiny_folder: str):
    (tmp_path / "notes").mkdir()
    for number, text in enumerate(TEXTS[:3]):
        (tmp_path / "notes" / f"{number}.txt").write_text(text)
    with pytest.warns(SmallContextWarning, match=r"only 3 different documents, .*\.from_corpus\(texts\); or, of a"):
        Collection.from_texts(TEXTS[:3], store=tmp_path / "texts.faiss", model=tiny_folder)
    with pytest.warns(SmallContextWarning, match="only 3 different passages, "):
        notes = Collection.from_files(tmp_path / "notes", store=tmp_path / "notes.faiss", model=tiny_folder)
    with (
        notes,
        pytest.warns(SmallContextWarning, match=r"only 3 different passages, .* collection\.recontextualize\(\)\.$"),
    ):
        notes.recontextualize(seed=1)


def test_what_was_embedded_is_written_every_few_seconds_and_never_again(
    tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
):
    """One parent of twenty passages, in parts of four: a kill in the third part costs that part."""
    monkeypatch.setattr(upsert, "FIRST_PART", 4)
    monkeypatch.setattr(upsert, "SMALLEST_PART", 4)
    monkeypatch.setattr(upsert, "PART_S", 0.0)
    embedded: list[str] = []
    embed = ContextualEmbedder.embed_passages

    def interrupted(self: ContextualEmbedder, texts: list[str], *rest: Any, **named: Any) -> Any:
        if len(embedded) == 8:
            raise KeyboardInterrupt
        embedded.extend(texts)
        return embed(self, texts, *rest, **named)

    embedder = ContextualEmbedder.from_corpus(TEXTS, model=tiny_folder)
    notes = Collection.create(tmp_path / "notes.faiss", embedder, parent_key="book")
    books = [{"book": "one"}] * 20
    monkeypatch.setattr(ContextualEmbedder, "embed_passages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        notes.add(TEXTS, ids=map(str, range(20)), metadata=books)
    assert [record.id for record in notes.scroll()] == list(map(str, range(8)))

    def counted(self: ContextualEmbedder, texts: list[str], *rest: Any, **named: Any) -> Any:
        embedded.extend(texts)
        return embed(self, texts, *rest, **named)

    told: list[int] = []
    monkeypatch.setattr(ContextualEmbedder, "embed_passages", counted)
    report = notes.add(
        TEXTS, ids=map(str, range(20)), metadata=books, on_progress=lambda progress: told.append(progress.done)
    )
    assert (report.added, report.unchanged) == (12, 8)
    assert embedded == TEXTS
    assert told == sorted(told)
    assert told[-1] == 20
    assert len(told) == 3
    whole = Collection.create(tmp_path / "whole.faiss", embedder, parent_key="book")
    monkeypatch.setattr(upsert, "FIRST_PART", 128)
    whole = Collection.open(tmp_path / "whole.faiss", model=tiny_folder)
    whole.add(TEXTS, ids=map(str, range(20)), metadata=books)
    assert [hit.id for hit in whole.search("river", 20)] == [hit.id for hit in notes.search("river", 20)]
    assert damages(notes) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("query", r"collection\.search\(query, k\)"),
        ("upsert", r"collection\.add\(texts, ids=…, metadata=…\)"),
        ("encode", r"collection\.embedder\.embed_documents\(texts\)"),
        ("peek", r"collection\.scroll\(\)"),
    ],
)
def test_a_call_of_another_library_is_answered_with_ours(notes: Collection, name: str, meant: str):
    with pytest.raises(AttributeError, match=f"^'Collection' object has no attribute '{name}'. Write {meant} for it"):
        getattr(notes, name)
    assert not hasattr(notes, name)
    with pytest.raises(AttributeError, match=r"^'Collection' object has no attribute 'colour'$"):
        _ = notes.colour  # pyright: ignore[reportAttributeAccessIssue]


def test_an_embedder_and_a_hit_answer_with_our_names(notes: Collection):
    with pytest.raises(AttributeError, match=r"'encode'. Write embedder\.embed_documents\(texts\) for it"):
        notes.embedder.encode(["a river"])  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"'embed_query'. Write embedder\.embed_queries\(\[query\]\) for it"):
        notes.embedder.embed_query("a river")  # pyright: ignore[reportAttributeAccessIssue]
    (hit,) = notes.search("river", 1)
    with pytest.raises(AttributeError, match=r"'Hit' object has no attribute 'page_content'. Write hit\.text for it"):
        _ = hit.page_content  # pyright: ignore[reportAttributeAccessIssue]
    for key, meant in (("text", "hit.text"), ("document", "hit.text"), ("year", "hit.metadata"), (0, "hit.metadata")):
        with pytest.raises(TypeError, match=rf"A hit is no dict: write {re.escape(meant)}"):
            hit[key]  # pyright: ignore[reportIndexIssue]
    assert copy.deepcopy(hit) == hit == ForkingPickler.loads(ForkingPickler.dumps(hit))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Collection("p.faiss"), r"Collection needs the argument 'embedder'. Collection\.open\(place\) opens"),
        (lambda: Collection.create("p.faiss"), r"create needs the argument 'embedder'. .*from_corpus\(texts\)"),
        (
            lambda: Collection.open("p.faiss", "e"),
            "open takes store by position, .* Name the others: model=…, options=…",
        ),
        (
            lambda: Collection.from_texts("p.faiss", TEXTS),
            "from_texts takes texts by position, .* Name the others: store=",
        ),
        (lambda: Collection.open(), "open needs the argument 'store'"),
        (lambda: ContextualEmbedder(), r"ContextualEmbedder needs the argument 'model'. .*from_corpus\(texts\)"),
        (lambda: ContextualEmbedder.from_corpus(TEXTS, size=10), "no argument 'size': write context_size=… for it"),
        (lambda: ContextualEmbedder.from_corpus([{"text": "a"}]), "from_corpus: text 0 has to be a str, found dict"),
        (lambda: ContextualEmbedder.from_corpus(TEXTS, seed="1"), "seed must be an int, not '1'"),
    ],
)
def test_wrong_first_arguments_are_answered_with_the_right_call(call: Callable[[], object], message: str):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.usefixtures("unchecked")
def test_a_seed_that_is_no_number_moves_nothing(notes: Collection):
    before = notes.inspect()
    with pytest.raises(TypeError, match="seed must be an int, not '1'"):
        notes.recontextualize(seed="1")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert notes.inspect() == before


def test_a_blank_query_is_named_as_a_query(notes: Collection):
    for search in (notes.search, notes.searcher("bm25").search):
        with pytest.raises(CorpusError, match=r"^The query is empty or blank\."):
            search(" \t")


def test_none_for_one_record_keeps_what_it_has(notes: Collection):
    notes.add(["water", "fish"], ids=["w", "f"], titles=["Water", "Fish"], metadata=[{"n": 1}, {"n": 2}])
    notes.add(["boat", "credit"], ids=["w", "f"], titles=[None, ""], metadata=[{"m": 3}, None])
    assert [(each.text, each.title, each.metadata) for each in notes.get(["w", "f"])] == [
        ("boat", "Water", {"m": 3}),
        ("credit", "", {"n": 2}),
    ]
    notes.add(["delta"], ids=["new"], metadata=[None])
    assert notes.get(["new"])[0].metadata == {}


def test_a_collection_has_a_length_and_is_true(notes: Collection, tmp_path: Path):
    assert len(notes) == notes.count() == 20
    empty = Collection.create(tmp_path / "empty.faiss", notes.embedder)
    assert (len(empty), bool(empty)) == (0, True)
    empty.close()
