"""Retrieval on held-out pairs during training: each query has to find its own document among its source's."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from cde_rag.evaluation.metrics import ndcg
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.config import EvaluationConfig, SourceConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.prefixes import Prefix, Prefixes
from cde_rag_training.networks.stages import Stages

LARGEST_CONTEXT = 256  # documents, where the model takes any number


class RetrievalRows(NamedTuple):
    """One source's set.

    Attributes:
        source: Its name.
        queries: Text rows, each once.
        documents: Text rows, each once.
        relevant: Text rows of the relevant documents of each query.
    """

    source: str
    queries: list[int]
    documents: list[int]
    relevant: list[set[int]]


class Retrieval(NamedTuple):
    """NDCG@10, the mean over sets; NaN where there is no such context.

    Attributes:
        own: Under a context of the set's own documents.
        null: Without a context.
        foreign: Under the context of the next set.
    """

    own: float
    null: float
    foreign: float


def retrieval_rows(prepared: Prepared, config: EvaluationConfig, *, seed: int) -> list[RetrievalRows]:
    """Sample a retrieval set for each source with two documents or more.

    Args:
        prepared: Held-out pairs.
        config: Sizes.
        seed: Random seed of the draw.
    """
    sets: list[RetrievalRows] = []
    for code, source in enumerate(prepared.source_names):
        pairs = np.random.default_rng([seed, code]).permutation(np.flatnonzero(prepared.sources == code))
        answers: dict[int, set[int]] = {}
        documents: dict[int, None] = {}
        for pair in pairs.tolist():
            document = int(prepared.documents[pair])
            if document in documents or len(documents) < config.documents:
                documents[document] = None
                answers.setdefault(int(prepared.queries[pair]), set()).add(document)
        if len(documents) > 1:
            queries = list(answers)[: config.queries]
            sets.append(RetrievalRows(source, queries, list(documents), [answers[query] for query in queries]))
    return sets


def retrieval(
    stages: Stages,
    prepared: Prepared,
    sets: Sequence[RetrievalRows],
    *,
    sources: Sequence[SourceConfig] = (),
    mini_batch_size: int,
) -> dict[str, Retrieval]:
    """Compute NDCG@10 of each set under its own, no, and a foreign context, by source; documents have no siblings.

    Args:
        stages: The network, in evaluation mode.
        prepared: Held-out pairs.
        sets: Retrieval sets of these pairs.
        sources: Task prefixes of sources, as they were trained; sources that the pairs lack are ignored.
        mini_batch_size: Texts per forward pass.
    """
    size = stages.network.config.context_size or LARGEST_CONTEXT
    prefixes = Prefixes(prepared, [each for each in sources if each.name in prepared.source_names], stages)
    _, first = np.unique(prepared.queries, return_index=True)
    pair_of = dict(zip(np.asarray(prepared.queries)[first].tolist(), first.tolist(), strict=True))

    def before(role: int, rows: Sequence[int]) -> list[Prefix]:
        if role == DOCUMENT:
            return prefixes.of_rows(rows)
        return prefixes.of_queries(np.array([pair_of[row] for row in rows], dtype=np.int64))

    contexts = [
        stages.read(
            [
                stages.first_ids(prepared.texts[row], prefix)
                for row, prefix in zip(each.documents[:size], before(DOCUMENT, each.documents[:size]), strict=True)
            ],
            mini_batch_size=mini_batch_size,
        )
        for each in sets
    ]
    found: dict[str, Retrieval] = {}
    for number, each in enumerate(sets):

        def under(context: int | None, each: RetrievalRows = each) -> float:
            vectors = contexts[context] if context is not None else contexts[0][:0]
            given = stages.prepare(vectors, range(len(vectors)), [False] * len(vectors))
            queries, documents = (
                stages.embed(
                    [
                        stages.second_ids(prepared.texts[row], role, prefix)
                        for row, prefix in zip(rows, before(role, rows), strict=True)
                    ],
                    role,
                    given,
                    mini_batch_size=mini_batch_size,
                )
                for role, rows in ((QUERY, each.queries), (DOCUMENT, each.documents))
            )
            return _mean_ndcg((queries @ documents.T).cpu().numpy(), each)

        found[each.source] = Retrieval(
            own=under(number),
            null=under(None) if stages.knows_null else float("nan"),
            foreign=under((number + 1) % len(sets)) if len(sets) > 1 else float("nan"),
        )
    return found


def mean_of(found: dict[str, Retrieval]) -> Retrieval:
    """Average the results over sets, weighted equally."""
    return Retrieval(*np.mean([list(each) for each in found.values()], axis=0).tolist())


def _mean_ndcg(scores: Float32[np.ndarray, "queries documents"], rows: RetrievalRows) -> float:
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    values = [
        ndcg([str(rows.documents[place]) for place in ranking], {str(row): 1 for row in relevant}, 10)
        for ranking, relevant in zip(best.tolist(), rows.relevant, strict=True)
    ]
    return float(np.mean(values))
