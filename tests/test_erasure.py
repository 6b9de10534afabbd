"""Deleted documents that are still in a context's sample are counted, and recontextualize gets rid of them."""

from pathlib import Path

import pytest
from tiny import WORDS

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag._validation import digest
from cde_rag.collection.info import Erasure, erasures
from cde_rag.model import CDEModel
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


@pytest.fixture
def papers(tmp_path: Path, tiny_model: CDEModel) -> Collection:
    """Twenty documents, of which `sampled` finds six in the context."""
    embedder = ContextualEmbedder.from_corpus([f"{word} bank" for word in WORDS], model=tiny_model, context_size=6)
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    papers.add(["bank"] * len(WORDS), titles=WORDS, ids=WORDS)
    return papers


def sampled(papers: Collection) -> list[str]:
    """Ids of the documents in the context: those whose removal is noticed."""
    kept = {row.tobytes() for row in papers.embedder.context.digests}
    return [word for word in WORDS if digest(f"{word} bank") in kept]


def test_what_was_deleted_or_replaced_is_counted(papers: Collection):
    inside = sampled(papers)
    assert len(inside) == 6
    assert erasures(papers.store) == [Erasure(1, True, 6, 0)]
    papers.delete([word for word in WORDS if word not in inside])
    assert erasures(papers.store) == [Erasure(1, True, 6, 0)]
    papers.delete(inside[:2])
    papers.add(["another"], ids=[inside[2]])
    papers.add(["bank"], ids=["the same text"], titles=[inside[0]])
    assert erasures(papers.store) == [Erasure(1, True, 6, 2)]


def test_recontextualize_gets_rid_of_them_and_the_run_after_it_of_the_generation_before(papers: Collection):
    papers.delete(sampled(papers)[:3])
    papers.recontextualize(seed=1, context_size=6)
    assert erasures(papers.store) == [Erasure(1, False, 6, 3), Erasure(2, True, 6, 0)]
    papers.recontextualize(seed=2, context_size=6)
    assert [(one.generation, one.gone) for one in erasures(papers.store)] == [(2, 0), (3, 0)]


def test_a_null_context_knows_nobody(tmp_path: Path, tiny_model: CDEModel):
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    assert erasures(papers.store) == [Erasure(1, True, 0, 0)]
