"""A plain sentence-transformers model as an embedder: its vectors are those of sentence-transformers, its fingerprint
is that of its files, and a collection goes from it to a context and back while readers follow."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from intact import damages
from plain_model import PROMPTS, write_static, write_transformer
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag.collection.collection import Collection
from cde_rag.collection.first_context import create_without_documents
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, PlainEmbedder
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, StoreError, TruncationError, TruncationWarning
from cde_rag.indexing import backfill as generations
from cde_rag.indexing.recontextualization import estimate
from cde_rag.models import CDEModel
from cde_rag.models.model import check_read, cut_texts
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 5)) for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("plain") / "model")


@pytest.fixture(scope="module")
def plain(folder: Path) -> ContextualEmbedder:
    return PlainEmbedder(folder, options=EmbedderOptions(device="cpu"))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CDEModel:
    """The tiny contextual model, in a folder that its name finds."""
    checkpoints.write(tmp_path / "tiny", tiny_network(), tiny_tokenizer())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cde_rag.models.cde_model.native_dtype", lambda _: "float32")  # of readers that load it too
    return CDEModel.from_pretrained("tiny", device="cpu", dtype="float32")


@pytest.fixture
def papers(plain: ContextualEmbedder, tmp_path: Path) -> Collection:
    papers = Collection.create(FaissStore(tmp_path / "papers"), plain)
    papers.add(TEXTS, ids=map(str, range(30)))
    return papers


def opened(collection: Collection) -> Collection:
    return Collection.open(FaissStore(collection.store.folder), options=EmbedderOptions(device="cpu"))  # type: ignore[attr-defined]


def test_vectors_are_those_of_sentence_transformers(plain: ContextualEmbedder, folder: Path) -> None:
    model = SentenceTransformer(str(folder), device="cpu")
    documents = model.encode(TEXTS, prompt=PROMPTS["passage"], normalize_embeddings=True)
    queries = model.encode_query(TEXTS, normalize_embeddings=True)
    assert np.abs(documents - queries).max() > 1e-2  # prompts act
    np.testing.assert_allclose(plain.embed_documents(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(plain.embed_queries(TEXTS), queries, atol=1e-5)
    assert plain.embed_documents([]).shape == (0, 16)
    assert isinstance(plain, Embedder)


def test_static_vectors(tmp_path: Path) -> None:
    static = PlainEmbedder(write_static(tmp_path / "static"))
    expected = SentenceTransformer(str(tmp_path / "static")).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(static.embed_documents(TEXTS), expected, atol=1e-5)
    assert static.embed_passages(["the river " * 999], None).truncated.tolist() == [False]
    assert static.count_tokens(["the river", "a bank"]) == 4 + 2 * 2  # [CLS] and [SEP]


def test_the_fingerprint_is_that_of_the_files(plain: ContextualEmbedder, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    for name in ("README.md", "trainer_state.json", "data_config.json", "vocab.txt"):  # with a tokenizer.json beside
        (tmp_path / "copy" / name).write_text("It changes no vector.")
    assert PlainEmbedder(tmp_path / "copy").fingerprint == plain.fingerprint
    others = {
        PlainEmbedder(folder, prefixes={"query": "", "document": ""}).fingerprint,
        PlainEmbedder(folder, max_length=8).fingerprint,
        PlainEmbedder(write_transformer(tmp_path / "other", seed=1)).fingerprint,
    }
    for name in ("1_Pooling/config.json", "tokenizer_config.json", "config_sentence_transformers.json"):
        place = tmp_path / "copy" / name
        place.write_text(place.read_text() + "\n")
        others.add(PlainEmbedder(tmp_path / "copy").fingerprint)
    assert len(others - {plain.fingerprint}) == 6


def test_the_same_space_in_bfloat16(plain: ContextualEmbedder, folder: Path) -> None:
    half = PlainEmbedder(folder, options=EmbedderOptions(dtype="bfloat16"))
    assert half.fingerprint == plain.fingerprint
    vectors = half.embed_documents(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (vectors * plain.embed_documents(TEXTS)).sum(axis=1).min() > 0.99  # random weights, not real ones


@pytest.mark.usefixtures("unchecked")
def test_another_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="found 'int4'"):
        PlainEmbedder(folder, options=EmbedderOptions(dtype="int4"))  # type: ignore[arg-type]


def test_long_texts_are_counted(plain: ContextualEmbedder) -> None:
    long = "the river " * 10
    assert plain.embed_passages(["a bank", long], [[], []]).truncated.tolist() == [False, True]
    with pytest.warns(TruncationWarning, match="1 of 2 texts exceed the limit of 12 tokens"):
        plain.embed_documents(["a bank", long])
    prefixed = len(plain.context.identity.prefixes["document"].split())
    assert plain.count_tokens(["a bank", long]) == plain.count_tokens(["a bank"]) + 12
    assert plain.count_tokens(["a bank"]) == 2 + 2 + prefixed + 1  # [CLS], [SEP] and the colon
    assert plain.count_tokens([]) == 0


def test_texts_that_are_cut_are_found_by_reading_each_once(plain: ContextualEmbedder) -> None:
    model, count = plain.model, plain.model.count_tokens
    texts = ["a bank", "the river " * 10, "a river"]
    with mock.patch.object(model, "count_tokens", side_effect=count) as counted:
        assert cut_texts(model, texts) == [False, True, False]
    assert sum(len(call.args[0]) for call in counted.call_args_list) == len(texts) + 1
    assert cut_texts(model, []) == []
    with pytest.raises(CorpusError, match="1"):
        cut_texts(model, ["a bank", " "])
    with (
        mock.patch.object(model._model, "has_offsets", False),  # type: ignore[attr-defined]
        mock.patch.object(model._model, "reach", side_effect=NotImplementedError),  # type: ignore[attr-defined]
        pytest.raises(TruncationError, match="Split them"),
    ):
        check_read(model, texts, "Split them.")


def test_a_collection_that_begins_without_documents_grows(plain: ContextualEmbedder, tmp_path: Path) -> None:
    store = FaissStore(tmp_path / "grows")
    with Collection(store, create_without_documents(store, plain, "parent")) as made:
        assert made.add([f"{WORDS[n % 9]} {WORDS[n // 9]}" for n in range(70)]).added == 70
        assert made.embedder.fingerprint != plain.fingerprint  # it has a map of its corpus
        assert made.embedder.model._model is plain.model._model  # type: ignore[attr-defined] # given, not loaded again


@pytest.mark.parametrize("text", ["", " \n", "\ud800"])
def test_texts_that_cannot_be_embedded(plain: ContextualEmbedder, text: str) -> None:
    with pytest.raises(CorpusError, match="Text 1"):
        plain.embed_documents(["a river", text])
    with pytest.raises(TypeError, match="pass"):
        plain.embed_queries("a river")


def test_siblings_are_refused(plain: ContextualEmbedder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Leave parents out"):
        plain.embed_documents(["a", "b"], parents=["p", "p"])
    with pytest.raises(ModelError, match="reads no siblings"):
        plain.embed_passages(["a", "b"], [["b"], ["a"]])
    with pytest.raises(ValueError, match="reads no siblings, found parent_key='page'"):
        Collection.create(FaissStore(tmp_path / "papers"), plain, parent_key="page")


def test_models_that_cannot_be_loaded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="hub id of one, found 'nowhere'"):
        PlainEmbedder("nowhere")
    with pytest.raises(ModelError, match=r"modules\.json"):
        PlainEmbedder(tmp_path)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").rename(tmp_path / "copy" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"as safetensors, found pytorch_model\.bin"):
        PlainEmbedder(tmp_path / "copy")
    (tmp_path / "copy" / "pytorch_model.bin").rename(tmp_path / "copy" / "model.safetensors")
    (tmp_path / "copy" / "1_Pooling" / "pytorch_model.bin").write_bytes(b"of a module")
    with pytest.raises(ModelError, match="as safetensors"):
        PlainEmbedder(tmp_path / "copy")
    (tmp_path / "copy" / "1_Pooling" / "pytorch_model.bin").unlink()
    place = tmp_path / "copy" / "modules.json"
    place.write_text(place.read_text().replace("sentence_transformers.base", "modeling.evil"))
    (tmp_path / "copy" / "modeling.py").write_text("raise SystemExit('remote code')")
    with pytest.raises(ModelError, match="cannot load it"):
        PlainEmbedder(tmp_path / "copy")


@pytest.mark.parametrize("length", [-1, 13])
def test_lengths_that_the_model_does_not_read(folder: Path, length: int) -> None:
    with pytest.raises(ModelError, match=f"own, 12, found {length}"):
        PlainEmbedder(folder, max_length=length)
    with pytest.raises(ModelError, match="prefixes for 'query' and 'document'"):
        PlainEmbedder(folder, prefixes={"query": ""})


def test_many_threads(plain: ContextualEmbedder) -> None:
    expected = plain.embed_queries(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: plain.embed_queries([text])[0], TEXTS * 4))
    np.testing.assert_allclose(found, np.tile(expected, (4, 1)), atol=1e-5)


def test_a_collection_finds_its_model_again(papers: Collection, plain: ContextualEmbedder, folder: Path) -> None:
    again = opened(papers)
    assert again.search("a river", 3) == papers.search("a river", 3)
    assert again.embedder.fingerprint == plain.fingerprint
    assert (again.inspect().context_source, again.inspect().model) == ("null", str(folder))
    assert again.add(TEXTS, ids=map(str, range(30))).unchanged == 30
    assert again.verify() == []


def test_a_collection_keeps_length_and_prefixes(folder: Path, tmp_path: Path) -> None:
    short = PlainEmbedder(folder, max_length=8, prefixes={"query": "a ", "document": ""})
    papers = Collection.create(FaissStore(tmp_path / "short"), short)
    assert opened(papers).embedder.context.identity == short.context.identity


def test_other_weights_and_other_places(plain: ContextualEmbedder, tmp_path: Path, stored: CDEModel) -> None:
    shutil.copytree(plain.context.identity.name, tmp_path / "there")
    papers = Collection.create(FaissStore(tmp_path / "papers"), PlainEmbedder(tmp_path / "there"))
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"Collection\.open\(store, model=folder\)"):
        opened(papers)
    moved = Collection.open(papers.store, model=tmp_path / "elsewhere")
    assert moved.embedder.fingerprint == plain.fingerprint
    other = write_transformer(tmp_path / "there", seed=1)
    with pytest.raises(ContextMismatchError, match="made with"):
        opened(papers)
    with pytest.raises(ContextMismatchError):
        Collection.open(papers.store, model=other)
    with pytest.raises(ContextMismatchError):
        Collection.open(papers.store, model=stored)


def assert_as_if_built(collection: Collection, place: Path) -> None:
    fresh = Collection.create(FaissStore(place), collection.embedder)
    fresh.add_records(collection.scroll())
    ids = [record.id for record in collection.scroll()]
    np.testing.assert_allclose(
        collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint),
        fresh.store.vectors(ids, fingerprint=fresh.embedder.fingerprint),
        atol=1e-5,
    )
    assert damages(collection) == []


def test_to_a_context_and_back_while_readers_follow(
    papers: Collection, plain: ContextualEmbedder, stored: CDEModel, tmp_path: Path
) -> None:
    reader, writer, before = opened(papers), opened(papers), papers.search("river bank", 5)
    assert estimate(papers.store, papers.embedder, papers.parent_key).tokens > 30
    report = papers.recontextualize(model=stored, context_size=8)
    assert (report.embedded, report.generation) == (30, 2)
    assert reader.search("river bank", 5) == papers.search("river bank", 5) != before
    assert writer.add(["money loan"], ids=["new"]).added == 1
    assert isinstance(reader.embedder, ContextualEmbedder)
    assert reader.embedder.context.size == 8
    assert_as_if_built(papers, tmp_path / "contextual")

    report = papers.recontextualize(embedder=plain)
    assert (report.embedded, report.generation, report.fingerprint) == (31, 3, plain.fingerprint)
    assert reader.search("river bank", 5) == papers.search("river bank", 5)
    old = [hit for hit in reader.search("river bank", 6) if hit.id != "new"]
    assert [hit.id for hit in old[:5]] == [hit.id for hit in before]
    assert_as_if_built(papers, tmp_path / "plain again")
    assert papers.recontextualize(embedder=plain).embedded == 0

    assert papers.rollback().generation == 2
    assert isinstance(papers.embedder, ContextualEmbedder)
    assert reader.search("river bank", 5) == papers.search("river bank", 5)


def test_to_a_context_that_is_there_already(papers: Collection, stored: CDEModel) -> None:
    made = ContextualEmbedder.from_corpus(TEXTS[:5], model=stored)
    assert papers.recontextualize(embedder=made).fingerprint == made.fingerprint == papers.embedder.fingerprint


def test_interrupted_it_goes_on(papers: Collection, plain: ContextualEmbedder, stored: CDEModel) -> None:
    made = ContextualEmbedder.from_corpus(TEXTS[:5], model=stored)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with mock.patch.object(generations, "ROWS_AT_ONCE", 20):
        with pytest.raises(KeyboardInterrupt):
            papers.recontextualize(embedder=made, on_progress=stop)
        assert papers.inspect().fingerprint == plain.fingerprint
        assert papers.recontextualize(embedder=made).embedded == 10


def test_what_cannot_be_done(papers: Collection, plain: ContextualEmbedder, stored: CDEModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a plain model, which reads no context"):
        papers.recontextualize()
    with pytest.raises(TypeError, match="give an embedder, or model"):
        papers.recontextualize(model=stored, embedder=plain)
    with pytest.raises(StoreError, match="length 16, found 8"):
        papers.recontextualize(embedder=PlainEmbedder(write_transformer(tmp_path / "other", dim=8)))
    pages = Collection.create(
        FaissStore(tmp_path / "pages"), ContextualEmbedder.from_corpus(TEXTS, model=stored), parent_key="page"
    )
    with pytest.raises(ModelError, match="parent key 'page', and the new model reads no siblings"):
        pages.recontextualize(embedder=plain)
    papers.recontextualize(model=stored, context_size=8)


def test_the_model_that_was_given_is_the_one_that_is_used(papers: Collection, stored: CDEModel, tmp_path: Path) -> None:
    (tmp_path / "tiny").rename(tmp_path / "moved")
    papers.recontextualize(model=stored, context_size=8)
    assert isinstance(papers.embedder, ContextualEmbedder)
    assert papers.embedder.model is stored
    other = ContextualEmbedder.from_corpus(TEXTS[:5], model=stored)
    with pytest.raises(ContextMismatchError):
        papers.embedder = other


def test_a_reader_that_cannot_follow_is_told(papers: Collection, stored: CDEModel, tmp_path: Path) -> None:
    reader = opened(papers)
    (tmp_path / "tiny").rename(tmp_path / "moved")
    papers.recontextualize(model=stored, context_size=8)
    with pytest.raises(ContextMismatchError, match="made with 'tiny'"):
        reader.search("river")


def test_as_a_surrogate(plain: ContextualEmbedder, tmp_path: Path) -> None:
    from cde_rag_training.clustering.surrogate import cached

    surrogate = cached(plain.embed_documents, "plain", tmp_path)
    np.testing.assert_allclose(surrogate(TEXTS), plain.embed_documents(TEXTS), atol=1e-6)


@pytest.mark.parametrize("path", ["../1_Pooling", "/1_Pooling"])
def test_modules_json_that_leads_elsewhere(folder: Path, tmp_path: Path, path: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    place = tmp_path / "copy" / "modules.json"
    modules = json.loads(place.read_text())
    place.write_text(json.dumps([modules[0], modules[1] | {"path": path}]))
    with pytest.raises(ModelError, match="modules inside the folder"):
        PlainEmbedder(tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("adapter_config.json", {"peft_type": "LORA"}), ("sentence_bert_config.json", {"tokenizer_name_or_path": "/t"})],
)
def test_models_that_are_in_part_elsewhere(folder: Path, tmp_path: Path, name: str, settings: dict[str, str]) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=rf"found {name}, which names .*elsewhere"):
        PlainEmbedder(tmp_path / "copy")


def test_truncated_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    place = tmp_path / "copy" / "model.safetensors"
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cannot load it"):
        PlainEmbedder(tmp_path / "copy")


def test_files_that_are_written_later_do_not_change_a_model(folder: Path, tmp_path: Path) -> None:
    """Safetensors are mapped: what is not copied is the file."""
    shutil.copytree(folder, tmp_path / "copy")
    plain = PlainEmbedder(tmp_path / "copy", options=EmbedderOptions(device="cpu"))
    before = plain.embed_queries(TEXTS)
    other = (write_transformer(tmp_path / "other", seed=1) / "model.safetensors").read_bytes()
    with (tmp_path / "copy" / "model.safetensors").open("r+b") as file:
        assert file.write(other) == file.seek(0, 2)
    np.testing.assert_array_equal(plain.embed_queries(TEXTS), before)
    changed = PlainEmbedder(tmp_path / "copy", options=EmbedderOptions(device="cpu"))
    assert changed.fingerprint != plain.fingerprint
    assert np.abs(changed.embed_queries(TEXTS) - before).max() > 1e-2


def test_files_that_are_written_while_they_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "copy")

    def load_and_write(*given: Any, **options: Any) -> SentenceTransformer:
        (tmp_path / "copy" / "config.json").touch()
        return SentenceTransformer(*given, **options)

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", load_and_write)
    with pytest.raises(ModelError, match="written while it was read"):
        PlainEmbedder(tmp_path / "copy")


LONG = [" ".join(np.random.default_rng(100 + i).choice(WORDS, 11 + 9 * i)) for i in range(6)]


@pytest.fixture(scope="module")
def windowed(folder: Path) -> ContextualEmbedder:
    return PlainEmbedder(folder, options=EmbedderOptions(device="cpu"), windows=True)


def test_texts_that_fit_are_read_as_without_windows(plain: ContextualEmbedder, windowed: ContextualEmbedder) -> None:
    np.testing.assert_array_equal(windowed.embed_documents(TEXTS), plain.embed_documents(TEXTS))
    np.testing.assert_array_equal(windowed.embed_queries(TEXTS), plain.embed_queries(TEXTS))
    beside_long = windowed.embed_documents([*TEXTS, *LONG])[: len(TEXTS)]
    np.testing.assert_allclose(beside_long, plain.embed_documents(TEXTS), atol=1e-5)
    assert windowed.count_tokens(TEXTS) == plain.count_tokens(TEXTS)
    assert windowed.context.identity.windows
    assert windowed.fingerprint != plain.fingerprint


@pytest.mark.parametrize("role", ["document", "query"])
def test_a_long_text_is_the_weighted_mean_of_its_windows(
    plain: ContextualEmbedder, windowed: ContextualEmbedder, role: str
) -> None:
    """Slow reference: a token is a word, so that a window has as many words as fit beside prefix, [CLS] and [SEP]."""
    room = 12 - 2 - len(PROMPTS["query" if role == "query" else "passage"].split()) - 1  # the colon is a token
    embed = plain.embed_queries if role == "query" else plain.embed_documents
    read = windowed.embed_queries if role == "query" else windowed.embed_documents
    for text in LONG:
        words = text.split()
        parts = [" ".join(words[start : start + room]) for start in range(0, len(words), room)]
        weights = np.array([len(part.split()) + 12 - room for part in parts])
        mean = (embed(parts) * weights[:, None]).sum(axis=0)
        np.testing.assert_allclose(read([text])[0], mean / np.linalg.norm(mean), atol=1e-5)
        assert len(parts) > 1


def test_windows_of_a_batch_are_those_of_single_texts(windowed: ContextualEmbedder) -> None:
    mixed = [LONG[3], TEXTS[0], LONG[0], TEXTS[1], LONG[5]]
    single = np.concatenate([windowed.embed_documents([text]) for text in mixed])
    np.testing.assert_allclose(windowed.embed_documents(mixed), single, atol=1e-5)
    assert not windowed.embed_passages(mixed, None).truncated.any()
    assert windowed.count_tokens(mixed) == sum(windowed.count_tokens([text]) for text in mixed)


def test_the_end_of_a_long_text_counts_in_windows_alone(
    plain: ContextualEmbedder, windowed: ContextualEmbedder
) -> None:
    long, other = f"{LONG[5]} river bank", f"{LONG[5]} money loan"
    assert np.abs(windowed.embed_documents([long]) - windowed.embed_documents([other])).max() > 1e-3
    with pytest.warns(TruncationWarning):
        np.testing.assert_array_equal(plain.embed_documents([long]), plain.embed_documents([other]))


def test_a_collection_keeps_windows(plain: ContextualEmbedder, windowed: ContextualEmbedder, tmp_path: Path) -> None:
    papers = Collection.create(FaissStore(tmp_path / "long"), windowed)
    papers.add(LONG)
    again = opened(papers)
    assert again.embedder.context.identity == windowed.context.identity
    assert again.inspect().windows
    assert again.search(LONG[4], 2) == papers.search(LONG[4], 2)
    assert damages(papers) == []
    with pytest.raises(ContextMismatchError, match="the same model with windows=True"):
        Collection.open(papers.store, model=plain)
    assert papers.recontextualize(embedder=plain).embedded == len(LONG)
    assert not opened(papers).inspect().windows


def test_windows_under_arithmetic(windowed: ContextualEmbedder, tmp_path: Path) -> None:
    """The map and the siblings are of the windows' vectors, and the collection finds its model again by name."""
    made = ArithmeticEmbedder.from_corpus([*TEXTS, *LONG], model=windowed, weight=0.3)
    assert made.context.identity.windows
    parents = ["p", "p", None, "q", "q", "q"]
    single = np.concatenate(
        [
            made.embed_passages(
                [text], [[t for t, p in zip(LONG, parents, strict=True) if p == own and t != text]]
            ).vectors
            if own
            else made.embed_documents([text])
            for text, own in zip(LONG, parents, strict=True)
        ]
    )
    np.testing.assert_allclose(made.embed_documents(LONG, parents=parents), single, atol=1e-5)
    cut = ArithmeticEmbedder.from_corpus(
        [*TEXTS, *LONG],
        model=PlainEmbedder(windowed.context.identity.name, options=EmbedderOptions(device="cpu")),
        weight=0.3,
    )
    assert cut.fingerprint != made.fingerprint
    papers = Collection.create(FaissStore(tmp_path / "arithmetic"), made, parent_key="page")
    papers.add(LONG, metadata=[{} if page is None else {"page": page} for page in parents])
    again = opened(papers)
    assert again.embedder.fingerprint == made.fingerprint
    assert again.search(LONG[4], 3) == papers.search(LONG[4], 3)
    with pytest.raises(ModelError, match="by its own setting"):
        papers.recontextualize(windows=True)
    with pytest.raises(ContextMismatchError):
        cut.with_context(made.context)


def test_windows_of_a_model_without_limit(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"any length\. Leave windows out"):
        PlainEmbedder(write_static(tmp_path / "static"), windows=True)


def test_a_sentence_transformer_in_place_of_a_contextual_model_is_named(tmp_path: Path) -> None:
    folder = write_transformer(tmp_path / "plain")
    with pytest.raises(ModelError, match=r"found a SentenceTransformer.*model=PlainEmbedder\(folder\)"):
        CDEModel.from_pretrained(folder)
