"""Stores that 0.2.0 (4673670) and the code before issue 48 (587d3ff) wrote open, search alike, and are written on.

Made at those commits with the tiny model: six texts of two books, of which "f" was deleted, moved to a second context,
and "a" replaced in it.
"""

import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from intact import damages
from qdrant_client import QdrantClient
from tiny import tiny_cde_model

from cde_rag import Collection, Record
from cde_rag.errors import TextIndexError, TextIndexWarning
from cde_rag.indexing.upsert import AddReport
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss.database import FORMAT, WITHOUT_ANALYZER, WITHOUT_TOKENS
from cde_rag.stores.kinds import store_at
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
FINGERPRINT = "0d3b6850860fc55e7265d06e90998bb08fda67a4fc02c2815d211f3e8f7f235c"
HITS = [("c", 0.697226), ("d", 0.589971), ("e", 0.561286)]
COMMITS = pytest.mark.parametrize("commit", ["4673670", "587d3ff"])


def kept(commit: str, name: str, folder: Path) -> Path:
    """Unpack one of the stores."""
    with zipfile.ZipFile(Path(__file__).with_name(f"kept-{commit}.zip")) as archive:
        archive.extractall(folder, [found for found in archive.namelist() if found.startswith(f"{name}/")])
    return folder / name


def is_as_it_was(papers: Collection) -> None:
    assert damages(papers) == []
    assert papers.embedder.fingerprint == FINGERPRINT
    assert [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in papers.search("river", 3, by="vectors")] == HITS
    assert [record.id for record in papers.scroll()] == list("abcde")
    assert papers.get(["b"]) == [Record("b", "money bank loan", "Money", {"book": "x", "year": 1999})]
    assert {hit.id for hit in papers.search("river", by="words", where={"year": {"gte": 2000}})} == {"c", "e"}


@COMMITS
@pytest.mark.parametrize("name", ["papers.faiss", "papers.qdrant", "qdrant"])
def test_a_store_of_an_older_version(commit: str, name: str, tmp_path: Path) -> None:
    folder = kept(commit, name, tmp_path)
    if name == "qdrant":
        with closing(QdrantClient(path=str(folder))) as client:
            goes_on(QdrantStore(client, "papers"))
    else:
        goes_on(store_at(folder))


@COMMITS
def test_tables_of_an_older_version(commit: str, postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector; DROP SCHEMA IF EXISTS kept CASCADE")
        connection.execute(Path(__file__).with_name(f"kept-{commit}.sql").read_bytes())
    with closing(PgVectorStore(postgres, "kept")) as store:
        if commit == "4673670":  # of format 1, whose tables of words are others
            with Collection.open(store, model=tiny_cde_model()) as papers:
                assert [hit.id for hit in papers.search("river", 3, by="vectors")] == [id_ for id_, _ in HITS]
                with pytest.warns(TextIndexWarning, match="cde-rag reindex"):
                    assert [hit.id for hit in papers.search("river", 3)] == [id_ for id_, _ in HITS]
                with pytest.raises(TextIndexError, match="cde-rag reindex"):
                    papers.search("river", by="words")
            store.index_texts()
        goes_on(store)


def goes_on(store: Store) -> None:
    with Collection.open(store, model=tiny_cde_model()) as papers:
        is_as_it_was(papers)
    with Collection.open(store, model=tiny_cde_model()) as papers:
        assert papers.add(["river bank of mud"], ids=["a"]) == AddReport(unchanged=1)  # its metadata stay, too
        papers.add(["a boat at sea", "a fish at sea"], ids=["g", "e"])
        papers.delete(["d"])
        assert [record.id for record in papers.scroll()] == list("abceg")
        papers.rollback()
        assert papers.embedder.fingerprint != FINGERPRINT
        assert damages(papers) == []
        papers.recontextualize(seed=11, context_size=4)
        assert damages(papers) == []
    with Collection.open(store, model=tiny_cde_model()) as papers:
        assert papers.count() == len(papers.search("river", 9)) == 5


@COMMITS
def test_a_folder_gets_its_tokens_with_the_first_write(commit: str, tmp_path: Path) -> None:
    folder = kept(commit, "papers.faiss", tmp_path)

    def written_format() -> int:
        with closing(sqlite3.connect(folder / "collection.sqlite")) as connection:
            return connection.execute("PRAGMA user_version").fetchone()[0]

    with closing(FaissStore(folder)) as store:
        assert store.count() == 5
        assert written_format() in (WITHOUT_ANALYZER, WITHOUT_TOKENS)
        store.update_settings({"note": 1})
        assert written_format() == FORMAT
