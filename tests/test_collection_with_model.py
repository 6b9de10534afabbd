"""The whole road with a real, tiny model and the real store: what a collection holds is what the embedder makes of the
whole corpus at once, and another process finds the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from intact import damages
from tiny import WORDS, tiny_cde_model, tiny_network, tiny_tokenizer

from cde_rag import Collection, ContextualEmbedder
from cde_rag.errors import (
    ContextFormatError,
    ContextMismatchError,
    CorpusError,
    ModelError,
    StoreFormatError,
    TruncationWarning,
)
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.stores.faiss import FaissStore

PARENTS = [str(i // 25) if i % 10 else None for i in range(100)]  # longer than siblings are many, and some have none


def corpus(size: int) -> list[str]:
    random = np.random.default_rng(size)
    return [" ".join(random.choice(WORDS, 8)) + f" {'abcdefghij'[i % 10]} {'klmnopqrst'[i // 10]}" for i in range(size)]


@pytest.fixture
def embedder(tiny_model: CDEModel) -> ContextualEmbedder:
    return ContextualEmbedder.from_corpus(corpus(100), model=tiny_model, context_size=20)


@pytest.fixture
def filled(embedder: ContextualEmbedder, tmp_path: Path) -> Collection:
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder, parent_key="parent")
    papers.add(corpus(100), ids=map(str, range(100)), metadata=[{"parent": parent} for parent in PARENTS])
    return papers


def test_vectors_are_those_of_the_corpus_embedded_at_once(filled: Collection):
    expected = filled.embedder.embed_documents(corpus(100), parents=PARENTS)
    stored = filled.store.vectors([str(i) for i in range(100)], fingerprint=filled.embedder.fingerprint)
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    alone = filled.embedder.embed_documents(corpus(100))
    assert np.abs(stored - alone).max() > 1e-2  # siblings act


@pytest.mark.parametrize("size", [7, 33])
def test_pieces_give_the_vectors_of_the_whole(embedder: ContextualEmbedder, tmp_path: Path, size: int):
    rows = [i for parent in (2, 0, 3, 1) for i in range(25 * parent, 25 * parent + 25)]
    texts, papers = corpus(100), Collection.create(FaissStore(tmp_path / "papers"), embedder, parent_key="parent")
    for start in range(0, 100, size):
        part = rows[start : start + size]
        papers.add([texts[i] for i in part], ids=map(str, part), metadata=[{"parent": PARENTS[i]} for i in part])
    stored = papers.store.vectors([str(i) for i in range(100)], fingerprint=embedder.fingerprint)
    np.testing.assert_allclose(stored, embedder.embed_documents(texts, parents=PARENTS), atol=1e-5)


def test_search_is_the_dot_product_of_query_and_documents(filled: Collection):
    query = "money in the bank"
    scores = filled.embedder.embed_documents(corpus(100), parents=PARENTS) @ filled.embedder.embed_queries([query])[0]
    hits = filled.search(query, k=5, by="vectors")
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:5], atol=1e-5)
    assert hits[0].text == corpus(100)[int(np.argmax(scores))]


def test_another_process_finds_the_same(filled: Collection, tmp_path: Path):
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    stored = CDEModel.from_pretrained(tmp_path / "model", device="cpu", dtype="float32")
    embedder = ContextualEmbedder.from_corpus(corpus(100), model=stored, context_size=20)
    papers = Collection.create(FaissStore(tmp_path / "stored"), embedder, parent_key="parent")
    papers.add(corpus(100), metadata=[{"parent": parent} for parent in PARENTS])
    code = (
        "import json, sys\n"
        "from cde_rag import Collection, EmbedderOptions\n"
        "from cde_rag.stores.faiss import FaissStore\n"
        "options = EmbedderOptions(device='cpu', dtype='float32')\n"
        "papers = Collection.open(FaissStore(sys.argv[1]), model=sys.argv[2], options=options)\n"
        "hits = papers.search('a fish in the river', k=7)\n"
        "print(json.dumps([papers.inspect().fingerprint, papers.parent_key, [[hit.id, hit.score] for hit in hits]]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "stored"), str(tmp_path / "model")]
    fingerprint, parent_key, hits = json.loads(subprocess.check_output(command, text=True))
    assert (fingerprint, parent_key) == (embedder.fingerprint, "parent")
    expected = papers.search("a fish in the river", k=7)
    assert [id_ for id_, _ in hits] == [hit.id for hit in expected]
    np.testing.assert_allclose([score for _, score in hits], [hit.score for hit in expected], atol=1e-5)


def test_reopened_collection_goes_on(filled: Collection, tiny_model: CDEModel, tmp_path: Path):
    filled.close()
    papers = Collection.open(FaissStore(tmp_path / "papers"), model=tiny_model)
    metadata = [{"parent": parent} for parent in PARENTS]
    assert papers.add(corpus(100), ids=map(str, range(100)), metadata=metadata).unchanged == 100
    assert damages(papers) == []


def test_other_weights_are_refused(filled: Collection):
    with pytest.raises(ContextMismatchError, match="made by 'tiny'"):
        Collection.open(filled.store, model=tiny_cde_model(seed=1))


def test_model_that_is_not_here(filled: Collection):
    with pytest.raises(ModelError, match=r"made with the model 'tiny'.*Collection\.open\(store, model=folder\)"):
        Collection.open(filled.store)
    with pytest.raises(ModelError, match="found 'nowhere'"):
        Collection.open(filled.store, model="nowhere")


def test_damaged_context_is_refused(filled: Collection, tiny_model: CDEModel, tmp_path: Path):
    (path,) = (tmp_path / "papers").glob("context-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert filled.verify() != []
    filled.close()
    with pytest.raises((ContextFormatError, StoreFormatError)):
        Collection.open(FaissStore(tmp_path / "papers"), model=tiny_model)


def test_blank_queries(filled: Collection):
    for query in ("", " \n"):
        with pytest.raises(CorpusError, match="blank"):
            filled.search(query)


def test_long_records_are_counted(embedder: ContextualEmbedder, tmp_path: Path):
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    with pytest.warns(TruncationWarning, match="1 of 2 embedded records exceed the model's limit of 32 tokens"):
        report = papers.add(["the river", "the river " * 30])
    assert (report.added, report.truncated) == (2, 1)
