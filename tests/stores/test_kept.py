"""Collections and a context that commit e528adb wrote (before the modules were renamed) open, and go on.

Made at that commit with the tiny model: five texts, of which "e" was deleted; see `TEXTS`.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from intact import damages
from tiny import tiny_cde_model

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.errors import StoreError
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store

TEXTS = ["river bank flood", "money bank loan", "river water flood", "credit risk loan"]
FINGERPRINT = "8f54a6748fa808b59d3aa23db12f7d934b5c08828c97cb0f7687d7f92e7f8ed7"
HITS = [("a", 0.672496), ("c", 0.63934), ("d", 0.592871)]
FIRST = [-0.14959198, -0.06719177, 0.16744001, -0.17401215]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("kept-e528adb.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_the_context_is_the_same(kept: Path):
    context = Context.load(kept / "papers.cdectx")
    assert (context.fingerprint, context.size) == (FINGERPRINT, 4)
    embedder = ContextualEmbedder(tiny_cde_model(), context)
    vector = embedder.embed_documents([TEXTS[0], f"Money {TEXTS[1]}"], parents=["x", "x"])[0]
    np.testing.assert_allclose(vector[:4], FIRST, atol=1e-6)


def test_a_qdrant_store_of_before_is_searched_and_moved(kept: Path):
    """Its filters were digests in the payload, which `index_texts` replaces by Qdrant's own."""
    store = QdrantEdgeStore(kept / "papers.qdrant")
    with Collection.open(store, model=tiny_cde_model()) as papers:
        where = {"book": {"in": ["x", "y"]}}
        before = [record.id for record in papers.scroll(where)]
        assert papers.count(where) == len(before) > 0
        with pytest.raises(StoreError, match=r"index_texts\(\)"):
            papers.add(["a new text"], ids=["new"])
        with pytest.raises(StoreError, match=r"index_texts\(\)"):
            store.update_metadata({"a": {"book": "y"}})
        assert damages(papers) == []
        papers.store.index_texts()
        assert [record.id for record in papers.scroll(where)] == before
        assert papers.count(where) == len(before)
        assert damages(papers) == []
        assert not any(key.startswith(("cde_tokens", "cde_numbers")) for key in store._engine.points.indexed())
        for point in store._engine.points.in_order():
            assert not {"cde_tokens", "cde_numbers"} & set(point.payload or {})


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
@pytest.mark.parametrize(("name", "kind"), [("papers.faiss", FaissStore), ("papers.qdrant", QdrantEdgeStore)])
def test_the_collection_opens_and_goes_on(kept: Path, name: str, kind: Callable[[Path], Store]):
    with Collection.open(kind(kept / name), model=tiny_cde_model()) as papers:
        assert damages(papers) == []
        assert papers.embedder.fingerprint == FINGERPRINT
        assert [record.text for record in papers.scroll()] == TEXTS
        hits = papers.search("river", 3, by="vectors")
        assert [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits] == HITS
        np.testing.assert_allclose(
            papers.store.vectors(["a"], fingerprint=papers.embedder.fingerprint)[0, :4], FIRST, atol=1e-6
        )
        assert [hit.id for hit in papers.search("loan", by="words", where={"book": "x"})] == ["b"]
        if kind is QdrantEdgeStore:
            papers.store.index_texts()
        again = papers.add(TEXTS, ids=list("abcd"), titles=["", "Money", "", ""])
        assert again.unchanged == 4  # their metadata stay, since none are given
        papers.add(["a new text"], ids=["new"])
        papers.recontextualize(seed=5)
        assert papers.embedder.fingerprint != FINGERPRINT
        assert damages(papers) == []
