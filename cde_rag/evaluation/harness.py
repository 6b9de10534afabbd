"""Run systems over retrieval sets."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cde_rag.context import Context
from cde_rag.embedder import ContextualEmbedder
from cde_rag.errors import CorpusError, SmallContextWarning
from cde_rag.evaluation.baselines import MiniLM, PlainEmbedder, baseline_rankings
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir, read_corpus
from cde_rag.evaluation.contextual import Binder, Embedder, contextual_rankings, without_relevant
from cde_rag.evaluation.generic import standard_library
from cde_rag.evaluation.metrics import METRICS, score
from cde_rag.evaluation.ranking import Ranking
from cde_rag.evaluation.report import SYSTEMS, Evaluation, SetResult
from cde_rag.model import CDEModel
from cde_rag.texts import reject_str

DENSE = frozenset({"minilm", "centred", "whitened", "hybrid", "siblings_mean"})  # they need the plain embedder
WITH_PARENTS = frozenset({"parents", "siblings_mean"})


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """How far an evaluation is.

    Attributes:
        done: Systems finished, over all sets.
        total: Systems to run.
        set: Name of the set whose system was finished last.
        system: That system.
    """

    done: int
    total: int
    set: str
    system: str


def evaluate(
    folders: Sequence[str | Path | RetrievalSet],
    *,
    model: str | Path | CDEModel = "cde-mini",
    context_size: int = 512,
    seeds: Sequence[int] = (0,),
    systems: Sequence[str] = tuple(SYSTEMS),
    foreign: str | Path | None = None,
    split: str = "test",
    parent_key: str | None = None,
    max_queries: int = 2000,
    device: str | None = None,
    on_progress: Callable[[EvaluationProgress], None] | None = None,
) -> Evaluation:
    """Measure a contextual model on retrieval sets, beside what a user could have without it.

    Args:
        folders: In the layout of BEIR, or sets that `read_beir` has read (each with its own split and parents). Give
            development and test sets in two calls: their means mean different things.
        model: As for `ContextualEmbedder`.
        context_size: Documents of a context.
        seeds: A context is sampled for each; a query's figures are averaged over them.
        systems: Names from `report.SYSTEMS`. Those that a set gives no ground for (siblings without parents) are left out.
        foreign: Folder with the `corpus.jsonl` of the foreign context. By default each set has the corpus of the next, and
            a single set the docstrings of Python's standard library.
        split: Name of the judgments' file.
        parent_key: Field that names a document's parent; see `read_beir`.
        max_queries: Of a set; more are sampled as `RetrievalSet.sample_queries` says.
        device: Where models compute.
        on_progress: Called after each system of each set.

    Raises:
        CorpusError: A folder that is not as it should be, no folder, or two of one name.
        MissingExtraError: What a baseline needs is not installed.
        ModelError: The model cannot be loaded.
        ValueError: Unknown systems.
    """
    reject_str(folders, call="evaluate")
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise ValueError(f"systems are {', '.join(SYSTEMS)}; found {', '.join(unknown)}.")
    sets = [
        (one if isinstance(one, RetrievalSet) else read_beir(one, split=split, parent_key=parent_key)).sample_queries(
            max_queries
        )
        for one in folders
    ]
    ...
