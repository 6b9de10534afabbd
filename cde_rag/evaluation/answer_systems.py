"""Systems that are compared on judged questions: an index as it is, and baselines of the very same passages.

Each is a collection and a ranking, so that all have the product's own search, BM25 and fusion.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Several
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import HYBRID_WEIGHT
from cde_rag.embedders.contextual import ContextualEmbedder, contextual
from cde_rag.embedders.corpus_contexts import bare, contextual_identity, sampled
from cde_rag.embedders.plain_embedders import PlainEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.answer_scores import JudgedPassages, judged_passages
from cde_rag.evaluation.costs import Cost, CostMeter
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.evaluation.own_questions import LeftOut, OwnCorpus, chosen_records, find_answers
from cde_rag.evaluation.question_folder import Site
from cde_rag.evaluation.ranking import DEPTH, Ranking
from cde_rag.indexing.upsert import Progress
from cde_rag.models.model import Model
from cde_rag.models.plain.checkpoint import MINILM
from cde_rag.readers import PARENT_KEY
from cde_rag.records import Record, embedded_text
from cde_rag.search import fusion
from cde_rag.stores.kinds import store_at

INDEX: Final = "index"
ANSWER_SYSTEMS: Final[Mapping[str, str]] = {  # in the order of the table
    INDEX: "the index, searched by default (hybrid)",
    "index_vectors": "the index by vectors alone",
    "null": "the same passages without context and siblings, by vectors",
    "null_hybrid": "the same with the words of a collection (BM25)",
    "bm25": "the words of the index (BM25) alone",
    "minilm": "the same passages by all-MiniLM-L6-v2",
    "hybrid": "minilm and the words of a collection (BM25), fused alike",
}
_SEARCHES: Final[Mapping[str, tuple[str, fusion.Ranking]]] = {  # a collection and its ranking
    INDEX: (INDEX, "hybrid"),
    "index_vectors": (INDEX, "vectors"),
    "null": ("null", "vectors"),
    "null_hybrid": ("null", "hybrid"),
    "bm25": (INDEX, "bm25"),
    "minilm": ("minilm", "vectors"),
    "hybrid": ("minilm", "hybrid"),
}
OF_INDEX: Final = ("index", "index_vectors")  # these differ for each index of the same passages
OF_MODEL: Final = ("null", "null_hybrid")  # these for each model
OF_WORDS: Final = ("bm25",)  # these for each cut of the pages


@dataclass(frozen=True, eq=False)
class JudgedIndex:
    """Collection with questions that its passages answer.

    Attributes:
        collection: The index.
        data: Its passages and the questions.
        ids: Id of each passage in `data`, by the id of its record.
        name: Of an index with other options than the first one; empty for that.
        dropped: Number of questions that were left out, by reason.
        is_kept: True for a collection that is there already: searching it needs no more embedding.
    """

    collection: Collection
    data: JudgedPassages
    ids: Mapping[str, str]
    name: str = ""
    dropped: LeftOut | None = None
    is_kept: bool = False

    @classmethod
    def of_pages(
        cls, collection: Collection, questions: Sequence[JudgedQuestion], site: Site, *, name: str = ""
    ) -> "JudgedIndex":
        """Find the answers in the index of one folder of pages; a question that no passage answers stays.

        Args:
            collection: Index of the folder.
            questions: With paths of pages in the folder.
            site: Facts about the corpus.
            name: As in the class.
        """
        corpus = OwnCorpus.of(collection.scroll(), parent_key=PARENT_KEY)
        passages = [each._replace(page=each.page.partition("/")[2]) for each in corpus.passages]  # less the folder
        data = judged_passages(site, passages, questions)
        return cls(collection, data, _ids(corpus, data), name)

    @classmethod
    def of_questions(
        cls, collection: Collection, questions: Sequence[JudgedQuestion], *, source: str, name: str
    ) -> "JudgedIndex":
        """Find the answers in any collection; a question that none of its passages answers is left out.

        Args:
            collection: The collection.
            questions: As of `read_judged_questions`.
            source: Where they are from, for messages.
            name: Name of the collection.

        Raises:
            CorpusError: No question has an answer in the collection.
        """
        corpus = OwnCorpus.of(collection.scroll(), parent_key=collection.parent_key or PARENT_KEY)
        found = find_answers(questions, corpus, source=source, name=name)
        return cls(collection, found.data, _ids(corpus, found.data), dropped=found.dropped, is_kept=True)

    def by_model(
        self, model: Model, folder: Path, *, name: str, on_progress: Callable[[Progress], None] | None = None
    ) -> "JudgedIndex":
        """Embed the same passages by another model, in a context of theirs, if it reads one; the questions stay.

        Args:
            model: The model. Where it reads no siblings, its collection has no parents.
            folder: The collection is made there, and nothing is written to the first one.
            name: As in the class.
            on_progress: Called after each write.

        Warns:
            TruncationWarning: Passages exceed the model's token limit, with their number.
        """
        own = self.collection
        windows = own.embedder.context.identity.windows and not model.identity.is_plain
        texts = (embedded_text(record) for record in own.scroll())
        identity = contextual_identity(model, windows=windows or None)
        embedder = ContextualEmbedder(model, sampled(model, identity, texts, None, seed=0, unit="passage"))
        parent_key = own.parent_key if embedder.max_siblings else None
        made = _copied(own.scroll(), embedder, folder, INDEX, parent_key=parent_key, on_progress=on_progress)
        return replace(self, collection=made, name=name, is_kept=False)


def _ids(corpus: OwnCorpus, data: JudgedPassages) -> dict[str, str]:
    return dict(zip((record.id for record in corpus.records), data.ids, strict=True))


def copied_part(
    collection: Collection,
    questions: Sequence[JudgedQuestion],
    limit: int,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Copy a part of a collection, with all that answers, embedded anew in the same context; see `chosen_records`.

    Args:
        collection: The collection, to which nothing is written.
        questions: As of `read_judged_questions`.
        limit: Maximum number of passages, if those with an answer are not more.
        folder: The copy is made there.
        on_progress: Called after each write.
    """
    parent_key, embedder = collection.parent_key, collection.embedder
    chosen = chosen_records(collection.scroll, questions, limit, parent_key=parent_key or PARENT_KEY)
    made = _copied(chosen, embedder, folder, "part", parent_key=parent_key, on_progress=on_progress)
    if (weight := collection.store.manifest().settings.get(HYBRID_WEIGHT)) is None:
        return made
    made.store.update_settings({HYBRID_WEIGHT: weight})
    return Collection(made.store, embedder)


class SystemRun(NamedTuple):
    """Results of one system on one corpus.

    Attributes:
        system: Name in `ANSWER_SYSTEMS`.
        rankings: Ids of passages for each question, best first.
        cost: For this corpus.
    """

    system: str
    rankings: list[Ranking]
    cost: Cost


def system_rankings(
    index: JudgedIndex, systems: Several[str], folder: Path, meter: CostMeter | None = None
) -> Iterator[SystemRun]:
    """Yield the results of each system, in the order of `ANSWER_SYSTEMS`.

    Args:
        index: The index and its questions.
        systems: Names in `ANSWER_SYSTEMS`. Those without context are left out for a model without a null context.
        folder: Collections of the baselines are made there; those that are there already are used and completed.
        meter: Times the models; without it every cost is nought.
    """
    collections = {INDEX: index.collection}
    for name, (of, by) in _SEARCHES.items():
        if name not in systems:
            continue
        if of not in collections:
            embedder = _baseline(of, index.collection)
            if embedder is None:
                continue
            records = (Record(each.id, each.text, each.title) for each in index.collection.scroll())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # of the index it is said
                collections[of] = _copied(records, embedder, folder, of)
        hits = collections[of].searcher(by).search_batch(index.data.queries, DEPTH)
        cost = Cost()
        if meter is not None and by != "bm25":
            cost = meter.cost(collections[of].embedder, index.data.texts)
        if of == INDEX and index.is_kept:
            cost = replace(cost, seconds=0.0)
        yield SystemRun(name, [[index.ids[hit.id] for hit in found] for found in hits], cost)
    for of, collection in collections.items():
        if of != INDEX:
            collection.close()


def _baseline(name: str, collection: Collection) -> ContextualEmbedder | None:
    """Return the embedder of a baseline; None for the null context of a model that has none."""
    if name == "minilm":
        return PlainEmbedder(MINILM)
    own = contextual(collection.embedder)
    if own is None or not own.model.has_null:
        return None
    return ContextualEmbedder(own.model, bare(own.model, own.model.identity))


def _copied(
    records: Iterable[Record],
    embedder: Embedder,
    folder: Path,
    name: str,
    *,
    parent_key: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Return a collection of these records, of which none but their ids are held; one that is there is completed."""
    store = store_at(folder / f"{name}-{embedder.fingerprint[:16]}.faiss")  # several models have one folder
    made = Collection if store.exists() else partial(Collection.create, parent_key=parent_key)
    copy, ids = made(store, embedder), set[str]()

    def noted() -> Iterator[Record]:
        for record in records:
            ids.add(record.id)
            yield record

    copy.add_records(noted(), on_progress=on_progress)
    copy.delete(sorted({each.id for each in copy.scroll()} - ids))
    return copy
