"""Calls that users make. pyright, strict, has to accept them (`make lint`); nothing here is run."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from qdrant_client import QdrantClient

from cde_rag import (
    AsyncCollection,
    Canary,
    CDEModel,
    Collection,
    Context,
    ContextualEmbedder,
    EmbedderOptions,
    FunctionEmbedder,
    Hit,
    PlainEmbedder,
    Record,
    Tenants,
    evaluate,
)
from cde_rag.adoption import Adoption, PostgresTable, QdrantCollection, adopt, catch_up, release
from cde_rag.adoption.pgvector_table import LLAMA_INDEX
from cde_rag.collection.info import Inspection
from cde_rag.embedders.as_sentence_transformer import load, sentence_transformer
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.indexing.backfill import Recontextualization
from cde_rag.indexing.recontextualization import Estimate
from cde_rag.indexing.upsert import AddPlan, AddReport, Progress
from cde_rag.search.grouping import Group, ParentHit
from cde_rag.search.searcher import Searcher
from cde_rag.stores.base import Damage
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.dataframes import records, to_dataset


def embed(texts: list[str], parents: list[str | None]) -> np.ndarray:
    embedder = ContextualEmbedder.from_corpus(texts, model="cde-mini", context_size=256, seed=1)
    embedder.context.save(Path("docs.context.safetensors"))
    same = ContextualEmbedder(
        "cde-mini", Context.load("docs.context.safetensors"), options=EmbedderOptions(device="cpu", dtype="float32")
    )
    documents: np.ndarray = same.embed_documents(texts, parents=parents, progress=True)
    queries: np.ndarray = same.embed_queries(["how do I parse a date?"])
    return queries @ documents.T


def without_a_corpus(texts: tuple[str, ...]) -> np.ndarray:
    model = CDEModel.from_pretrained("cde-mini")
    assert model.dim == model.identity.dim
    return ContextualEmbedder(model, Context.null(model)).embed_documents(texts)


def fill(embedder: ContextualEmbedder, records: Iterator[Record]) -> int:
    def tell(progress: Progress) -> None:
        assert progress.done <= (progress.total or progress.done), f"after {progress.elapsed_s:.0f} s"

    with Collection.create(FaissStore("papers.faiss"), embedder, parent_key="source") as papers:
        papers.add(["a text"], ids=["1"], titles=["A title"], metadata=[{"year": 2021, "tags": ["a"]}])
        report: AddReport = papers.add_records(records, on_progress=tell)
        assert papers.delete(["1"]) + papers.delete(where={"year": {"lt": 2000}}) >= 0
        return report.added + report.replaced + report.updated + report.unchanged + report.truncated


def ask(question: str) -> list[Hit]:
    papers = Collection.open(FaissStore(Path("papers.faiss")))
    hits = papers.search(question, k=5, where={"year": {"gte": 2020}})
    both: list[list[Hit]] = papers.search_batch([question, "another"], 3, by="vectors")
    some: list[Record] = papers.get([hit.id for hit in hits])
    assert len(both) == 2
    assert papers.count() == len(list(papers.scroll())) >= len(some)
    about: Inspection = papers.inspect()
    damages: list[Damage] = papers.verify()
    assert about.fingerprint == papers.embedder.fingerprint
    assert not [damage.where for damage in damages]
    papers.close()
    return sorted(hits, key=lambda hit: (hit.score, hit.id, hit.title, hit.text))


def look_closer(papers: Collection, rerank: Callable[[Sequence[tuple[str, str]]], np.ndarray]) -> list[str]:
    page = papers.search("a river", 5, score_threshold=0.2, offset=5)
    named = papers.search("ERR_42", 5, where={"year": 2020}, offset=5)
    closer: Searcher = papers.searcher("hybrid", candidates=200).reranked(rerank, candidates=20)
    groups: list[Group] = closer.search_groups("a river", 3, group_by="year", group_size=2)
    parents: list[ParentHit] = closer.search_parents("a river", 3, where={"year": 2020})
    words = papers.searcher("bm25").search("a river")
    papers.store.index_texts()
    texts = [passage.text for parent in parents for passage in parent.passages]
    return [*texts, *(hit.id for group in groups for hit in group.hits), *(hit.id for hit in [*page, *named, *words])]


async def wait(papers: Collection) -> int:
    hits = await asyncio.to_thread(papers.search, "a river", 5)
    groups = await asyncio.to_thread(papers.searcher("bm25").search_groups, "a river", group_by="year")
    return len(hits) + len(groups)


async def serve(questions: list[str], records: list[Record]) -> list[list[Hit]]:
    async with await AsyncCollection.open("papers.faiss", options=EmbedderOptions(device="cpu")) as papers:
        report: AddReport = await papers.add_records(records)
        plan: AddPlan = await papers.add(["a text"], metadata=[None], dry_run=True)
        cost: Estimate = await papers.recontextualize(dry_run=True)
        named: list[Group] = await papers.searcher("bm25").search_groups("a river", group_by="year")
        texts: list[str] = [record.text async for record in papers.scroll({"year": 2020})]
        assert len(texts) + len(named) <= report.added + plan.added + cost.documents
        return list(await asyncio.gather(*(papers.search(question, 5, by="vectors") for question in questions)))


def measure() -> None:
    evaluate([Path("scifact")], model="cde-mini")


def own(texts: list[str]) -> ContextualEmbedder:
    client = FunctionEmbedder(lambda some: [[1.0, float(len(text))] for text in some], name="lengths-1")
    mapped = ContextualEmbedder.from_corpus(texts, model=client)
    papers = Collection.create(FaissStore("papers.faiss"), mapped)
    assert Collection.open(papers.store, model=client).embedder.fingerprint == mapped.fingerprint
    cost: Estimate = papers.recontextualize(model=client, dry_run=True)
    moved: Recontextualization = papers.recontextualize(model=PlainEmbedder("sentence-transformers/all-MiniLM-L6-v2"))
    assert moved.documents == cost.documents == papers.recontextualize(model=Path("my-model")).documents
    return ArithmeticEmbedder.from_corpus(texts, model=mapped, weight=0.3)


def migrate(texts: list[str]) -> list[str]:
    plain = PlainEmbedder("sentence-transformers/all-MiniLM-L6-v2", options=EmbedderOptions(device="cpu"))
    papers = Collection.create(FaissStore("papers.faiss"), plain)
    papers.add(texts)
    canary = Canary({"how do I parse a date?": ["12"]}, k=5, may_lose=0)
    there: Recontextualization = papers.recontextualize(
        model=CDEModel.from_pretrained("cde-mini"), canary=canary, grace_s=10
    )
    back = papers.recontextualize(embedder=plain)
    model = sentence_transformer(ContextualEmbedder.from_corpus(texts), default_task="document")
    model.save_pretrained("model")
    assert load("model").similarity is not None
    assert papers.add_records(records(to_dataset(papers.search("a river")))).unchanged == 10
    return [there.fingerprint, back.fingerprint]


def share(embedder: ContextualEmbedder) -> list[Hit]:
    stores = FolderTenants("customers.faiss", FaissStore)
    Tenants.create(stores, embedder, tenant_key="customer", parent_key="source").add("acme").close()
    with Tenants.open(stores, options=EmbedderOptions(device="cpu", mini_batch_size=8)) as tenants:
        for name in tenants.outgrown(512):
            tenants.get(name).recontextualize()
        assert tenants.inspect()["acme"].tenant in tenants.names()
        tenants.drop("globex")
        return tenants.get("acme").search("a river", 3)


def take_over(client: QdrantClient) -> Adoption:
    papers: Collection = adopt(QdrantCollection(client, "papers", "langchain"), parent_key="source")
    source = QdrantCollection(client, "notes", lambda payload: Record("", str(payload["body"])))
    notes = adopt(source, seed=1)
    release(source)
    table = adopt(PostgresTable(PgVectorStore("postgresql:///app", "papers"), "data_papers", LLAMA_INDEX))
    release(table)
    return catch_up(papers) if notes.count() else catch_up(papers, source)
