"""A collection of Qdrant that LangChain filled with plain MiniLM vectors becomes contextual while it is queried.

The documentation of the running Python is what is searched, so that this runs everywhere; the questions are the twenty
of `cde-rag demo`. NDCG@10 is printed before and after, beside BM25, with the interval that twenty questions allow.
At the end everything is taken back: the collection is what it was. Look at the figures before you adopt: with the
bundled model cde-mini-1 this corpus is a loss (0.825 to 0.762 on 1,006 entries); measure it on yours.

    pip install '.[qdrant,evaluation]'                                              # in a clone
    python examples/recontextualize_existing_qdrant.py                              # Qdrant in memory
    python examples/recontextualize_existing_qdrant.py --url http://localhost:6333  # a server, from 1.18 on
"""

import argparse
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from qdrant_client import QdrantClient, models

from cde_rag import Collection, Record
from cde_rag.adoption import QdrantCollection, adopt, catch_up, release
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.baselines import MiniLM
from cde_rag.evaluation.bm25 import BM25
from cde_rag.evaluation.demo_corpus import documentation
from cde_rag.evaluation.demo_questions import Question, questions
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg

NAME = "python_documentation"
DEPTH = 10  # hits that count


class Application:
    """What was there before: plain vectors without a name, and payloads as langchain-qdrant writes them."""

    def __init__(self, client: QdrantClient, records: Sequence[Record]) -> None:
        self.client, self.model = client, MiniLM()
        vectors = self.model([record.text for record in records])
        size = vectors.shape[1]
        client.create_collection(NAME, models.VectorParams(size=size, distance=models.Distance.COSINE))
        points = [
            models.PointStruct(
                id=str(uuid.uuid4()),
                vector=vector.tolist(),
                payload={"page_content": record.text, "metadata": {**record.metadata, "name": record.id}},
            )
            for record, vector in zip(records, vectors, strict=True)
        ]
        client.upload_points(NAME, points, wait=True)

    def search(self, vector: Sequence[float]) -> list[str]:
        """Names of what is nearest to a query's vector, best first."""
        found = self.client.query_points(NAME, list(vector), limit=DEPTH).points
        return [(point.payload or {})["metadata"]["name"] for point in found]


class Traffic(threading.Thread):
    """Users of the application, who notice nothing."""

    def __init__(self, application: Application, asked: Sequence[Question]) -> None:
        super().__init__(name="traffic", daemon=True)
        self.application = application
        self.vectors = application.model([question.text for question in asked]).tolist()
        self.expected = [application.search(vector) for vector in self.vectors]
        self.answered = self.changed = 0
        self.failed: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Ask one question after another."""
        while not self.done.wait(0.01):
            place = (self.answered + len(self.failed)) % len(self.vectors)
            try:
                self.changed += self.application.search(self.vectors[place]) != self.expected[place]
                self.answered += 1
            except Exception as error:  # noqa: BLE001 # whatever it is, it is counted
                self.failed.append(repr(error))


@contextmanager
def under(traffic: Traffic) -> Iterator[None]:
    """Let users ask until the block ends."""
    traffic.start()
    try:
        yield
    finally:
        traffic.done.set()
        traffic.join()


def corpus(size: int, asked: Sequence[Question]) -> list[Record]:
    """The documentation of whole modules: of those that answer a question, and of others until there are so many."""
    modules: dict[str, list[Record]] = {}
    for record in documentation():
        plain = Record(record.id, f"{record.title} {record.text}", metadata={"module": record.metadata["module"]})
        modules.setdefault(record.metadata["module"], []).append(plain)
    answers = {answer for question in asked for answer in question.answers}
    order = sorted(modules, key=lambda module: (not any(one.id in answers for one in modules[module]), module))
    kept: list[Record] = []
    for module in order:
        if len(kept) >= size:
            break
        kept += modules[module]
    return kept


def scores(rankings: Sequence[Sequence[str]], asked: Sequence[Question]) -> np.ndarray:
    """NDCG@10 of each question's ranking; every answer is worth the same."""
    judged = [dict.fromkeys(question.answers, 1) for question in asked]
    return np.array([ndcg(ranking, judgments, DEPTH) for ranking, judgments in zip(rankings, judged, strict=True)])


def names(collection: Collection, asked: Sequence[Question]) -> list[list[str]]:
    """What a contextual collection answers."""
    hits = collection.search_batch([question.text for question in asked], DEPTH, by="vectors")
    return [[hit.metadata["name"] for hit in some] for some in hits]


def table(before: np.ndarray, systems: dict[str, np.ndarray]) -> Iterator[str]:
    """One line for each system: NDCG@10, and the difference to the first with its 95 % interval over questions."""
    yield f"{'':28}{'NDCG@10':>8}   difference (95 %)"
    yield f"{'MiniLM, as it was':28}{before.mean():8.3f}"
    for system, found in systems.items():
        difference = compare([PairedQueries(found - before, np.arange(len(found)))])
        low, high = difference.queries
        yield f"{system:28}{found.mean():8.3f}   {difference.mean:+.3f} ({low:+.3f} … {high:+.3f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Do all of it, and say so."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="of a Qdrant server; in memory without one")
    parser.add_argument("--documents", type=int, default=1000, help="about so many, of whole modules")
    parser.add_argument("--model", default="cde-mini", help="contextual; a bundled name or a folder")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", TruncationWarning)  # what a docstring is for stands at its beginning

    asked = questions()
    records = corpus(given.documents, asked)
    client = QdrantClient(given.url) if given.url else QdrantClient(":memory:")
    application = Application(client, records)
    traffic = Traffic(application, asked)
    before = scores(traffic.expected, asked)
    words = BM25([record.text for record in records])
    bm25 = [[records[place].id for place, _ in words.search(question.text, DEPTH)] for question in asked]
    print(f"{NAME}: {len(records):,} points with vectors of MiniLM, and users who ask")

    size = min(512, len(records) // 2)  # documents of a context, so that two of them differ
    source = QdrantCollection(client, NAME, texts="langchain")
    with under(traffic):
        started = time.monotonic()
        papers = adopt(source, model=given.model, context_size=size, parent_key="module")
        print(f"adopted in {time.monotonic() - started:.0f} s: {papers.count():,} records beside what was there")
        after = scores(names(papers, asked), asked)
        print(f"caught up with what the application wrote since: {catch_up(papers).added}")
        again = papers.recontextualize(seed=1, context_size=size)
        moved = scores(names(papers, asked), asked)
        print(f"another context in {again.elapsed_s:.0f} s, as generation {again.generation}")
        papers.rollback()
        back = scores(names(papers, asked), asked)
        papers.close()
        release(source)
    print(f"users meanwhile: {traffic.answered:,} answered, {traffic.changed} otherwise than before, ", end="")
    print(f"{len(traffic.failed)} failed", *traffic.failed[:1])

    print(*table(before, {"BM25": scores(bm25, asked), "contextual": after, "another context": moved,
                          "rolled back": back}), sep="\n")  # fmt: skip
    left = scores([application.search(vector) for vector in traffic.vectors], asked)
    print(f"{'MiniLM, all taken back':28}{left.mean():8.3f}")


if __name__ == "__main__":
    main()
