"""Run systems over retrieval sets."""

import ast
import sysconfig
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from jaxtyping import Float64

from cde_rag._files import given_path
from cde_rag.embedders.contextual import AnyModel, ContextualEmbedder, as_model
from cde_rag.embedders.corpus_contexts import context_size_for, first_context
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, PlainEmbedder
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.errors import CorpusError, SmallContextWarning
from cde_rag.evaluation.baselines import (
    BASELINES,
    DENSE,
    FOR_PARENTS,
    DenseBaseline,
    MiniLM,
    baseline_rankings,
)
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir, read_corpus
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.conteb import is_conteb, read_conteb
from cde_rag.evaluation.costs import Cost, CostMeter
from cde_rag.evaluation.encoding import Binder, TextEmbedder, contextual_rankings, headed, without_relevant
from cde_rag.evaluation.markdown_set import is_markdown, read_markdown
from cde_rag.evaluation.metrics import METRICS, score
from cde_rag.evaluation.parents import SIBLINGS_SHARE
from cde_rag.evaluation.ranking import Ranking
from cde_rag.evaluation.report import SYSTEMS, Evaluation, SetResult
from cde_rag.models.model import Model, cut_texts
from cde_rag.models.plain.checkpoint import MINILM

HYBRID = frozenset({"hybrid", "own_hybrid", "parents_hybrid"})  # these need words
HEADERS = frozenset({"headers", "headers_hybrid"})  # these need parents
SIBLINGS = frozenset({"parents", "parents_hybrid"})  # these need parents, and a model that takes siblings
_MINILM: Final = frozenset({"minilm", "hybrid"})
OF_CORPUS: Final = BASELINES | {"foreign"}  # these are the same for all models, or not compared between them
_OF_MODEL: Final = frozenset({"own", "null", "own_hybrid"}) | SIBLINGS | HEADERS  # these a user can take


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """Progress of an evaluation.

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
    model: AnyModel = "cde-mini",
    context_size: int | None = None,
    seeds: Sequence[int] = (0,),
    systems: Sequence[str] = tuple(SYSTEMS),
    foreign: str | Path | None = None,
    split: str = "test",
    parent_key: str | None = None,
    max_characters: int | None = None,
    max_queries: int = 2000,
    strict: bool = False,
    device: str | None = None,
    on_progress: Callable[[EvaluationProgress], None] | None = None,
) -> Evaluation:
    """Evaluate a model on retrieval sets in the context of their corpora, compared with baselines.

    Args:
        folders: In the layout of BEIR; or sets of ConTEB, by name ("conteb/covid-qa") or as folders in its layout
            (`read_conteb`); or folders of Markdown, whose headings are the queries (`read_markdown`); or sets that were
            read before (each with its own split and parents). Give development and test sets in two calls: their means
            mean different things.
        model: As for `ContextualEmbedder`. The vectors of a plain one are mapped by the corpus; "null" has
            them as they are.
        context_size: Documents of a context; as many as the model expects, or 512, by default.
        seeds: A context is sampled for each; a query's figures are averaged over them.
        systems: Names in `SYSTEMS`; systems that do not apply to a set (siblings without parents) or to the model (no
            null context, no siblings) are left out.
        foreign: Folder with the `corpus.jsonl` of the foreign context. By default each set has the corpus of the next,
            and a single set the docstrings of Python's standard library.
        split: Name of the judgments' file.
        parent_key: Field that names a document's parent; see `read_beir`.
        max_characters: Longer documents are split; see `read_corpus`. Every system ranks them by their best passage.
        max_queries: Maximum per set; larger sets are sampled as in `RetrievalSet.sample_queries`.
        strict: Raise where a judged query is blank, or a judged document is not in the corpus.
        device: Device of the models.
        on_progress: Called after each system of each set.

    Raises:
        ContextError: The model expects another number of context documents.
        CorpusError: `strict` and an incomplete set; an invalid folder, no folder, two of one name, or none of the
            systems can run.
        MissingExtraError: A dependency of a baseline is not installed.
        ModelError: The model cannot be loaded.
        TypeError: A device for a model that an API serves.
        ValueError: Unknown systems, no seed, or `max_queries` below 1.
    """
    if not seeds or max_queries < 1:
        raise ValueError(f"Expected at least one seed and one query; found seeds={seeds}, max_queries={max_queries}.")
    sets = _read(folders, split, parent_key, max_characters)
    for data in sets if strict else ():
        _check_complete(data)
    sets = [one.sample_queries(max_queries) for one in sets]
    loaded = as_model(model, EmbedderOptions(device=device if isinstance(model, str | Path) else None))
    context_size = context_size_for(loaded, context_size)
    asked = [_applicable(data, systems, loaded, context_size) for data in sets]
    if not any(asked):
        raise CorpusError(
            f"Expected a system that applies to the sets and the model, found {', '.join(systems)}. {APPLIES}"
        )
    foreign_corpora = _foreign_corpora(sets, foreign) if "foreign" in systems else [None] * len(sets)
    embed = MiniLM(device) if DENSE.intersection(systems) else None
    bind, meter = _Bound(loaded, context_size), CostMeter()
    done, total = 0, sum(map(len, asked))
    results: list[SetResult] = []
    for data, wanted, other in zip(sets, asked, foreign_corpora, strict=True):
        scores: dict[str, dict[str, Float64[np.ndarray, " queries"]]] = {}
        for system, rankings in _rankings(data, wanted, embed, bind, other, seeds):
            scores[system] = _mean_over_contexts(rankings, data)
            done += 1
            if on_progress is not None:
                on_progress(EvaluationProgress(done, total, data.corpus.name, system))
        results.append(
            SetResult(
                name=data.corpus.name,
                documents=len(set(data.corpus.ids)),
                passages=len(data.corpus.texts),
                blank_documents=data.corpus.blank,
                truncated_passages=sum(cut_texts(loaded, data.corpus.texts)),
                truncated_queries=sum(cut_texts(loaded, data.queries)),
                context_documents=min(context_size, len(set(data.corpus.texts))),
                missing_documents=len(_missing(data)),
                blank_queries=data.blank_queries,
                foreign_corpus=other.name if other else None,
                query_ids=data.query_ids,
                blocks=data.blocks,
                scores=scores,
                costs=_costs(scores, bind, data.corpus.texts, meter),
            )
        )
    return Evaluation(model=loaded.identity.name, context_size=context_size, seeds=tuple(seeds), sets=tuple(results))


def _costs(systems: Collection[str], bound: "_Bound", texts: Sequence[str], meter: CostMeter) -> dict[str, Cost]:
    """Return the costs of those systems that a user can take; MiniLM is timed in the fastest runtime, as a model is."""
    costs = {"bm25": Cost()} if "bm25" in systems else {}
    if (own := _OF_MODEL.intersection(systems)) and bound.last is not None:
        costs |= dict.fromkeys(sorted(own), meter.cost(bound.last, texts))
    if minilm := _MINILM.intersection(systems):
        costs |= dict.fromkeys(sorted(minilm), meter.cost(PlainEmbedder(MINILM), texts))
    return costs


def _missing(data: RetrievalSet) -> set[str]:
    """Return the ids of judged documents that the corpus lacks."""
    return set[str]().union(*data.judgments) - set(data.corpus.ids)


def _check_complete(data: RetrievalSet) -> None:
    """Refuse a set with blank queries, or with judged documents that its corpus lacks."""
    missing = sorted(_missing(data))
    if data.blank_queries or missing:
        first = f", such as {missing[0]!r:.80}" if missing else ""
        raise CorpusError(
            f"{data.corpus.name}: expected a complete set, found {data.blank_queries} blank queries and {len(missing)} "
            f"judged documents that the corpus lacks{first}. Mend them, or leave strict out: they are counted then."
        )


def _read(
    folders: Sequence[str | Path | RetrievalSet], split: str, parent_key: str | None, max_characters: int | None
) -> list[RetrievalSet]:
    if isinstance(folders, (str, Path)):
        raise TypeError(f"evaluate takes a list of folders and was given one; pass [{str(folders)!r}].")
    sets = [
        one if isinstance(one, RetrievalSet) else _read_set(one, split, parent_key, max_characters) for one in folders
    ]
    names = [one.corpus.name for one in sets]
    if not sets or len(set(names)) < len(names):
        raise CorpusError(f"Expected at least one folder, each of another name; found {names}.")
    return sets


def _read_set(name: str | Path, split: str, parent_key: str | None, max_characters: int | None) -> RetrievalSet:
    """Read a set in the layout that it is in; arguments and errors as in `evaluate`."""
    folder = given_path(name, "A retrieval set", CorpusError)
    if is_conteb(name):
        if max_characters is not None:
            raise CorpusError(f"{name}: a set of ConTEB has its chunks already. Leave max_characters out.")
        return read_conteb(name, split=split)
    if is_markdown(folder):
        return read_markdown(folder, max_characters=max_characters)
    return read_beir(name, split=split, parent_key=parent_key, max_characters=max_characters)


APPLIES: Final = (
    "Systems with siblings or headers need documents with parents (parent_key, or --parent-key, names their field), "
    "own_without_relevant a corpus of at most two contexts, null a model with a null context."
)


def _applicable(data: RetrievalSet, systems: Sequence[str], model: Model, context_size: int) -> list[str]:
    """Return the systems that apply to the set and the model."""
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise ValueError(f"Expected systems among {', '.join(SYSTEMS)}; found {', '.join(unknown)}.")
    absent = set[str]()
    if data.corpus.parents is None:
        absent |= SIBLINGS | FOR_PARENTS | HEADERS
    if not model.max_siblings:
        absent |= SIBLINGS
    if not model.has_null:
        absent.add("null")
    if len(data.corpus.texts) > 2 * context_size or without_relevant(data) is None:
        absent.add("own_without_relevant")
    return [system for system in systems if system not in absent]


def _foreign_corpora(sets: Sequence[RetrievalSet], foreign: str | Path | None) -> list[Corpus]:
    """Return for each set the given corpus, else that of the next set, else the standard library's docstrings."""
    corpora = [one.corpus for one in sets]
    if foreign is not None:
        others = [read_corpus(foreign)] * len(sets)
    else:
        others = [*corpora[1:], corpora[0]] if len(corpora) > 1 else [_standard_library()]
    for corpus, other in zip(corpora, others, strict=True):
        if corpus.texts == other.texts:
            raise CorpusError(f"{corpus.name}: expected a foreign corpus, found its own in {other.name}. Name another.")
    return others


class _Bound:
    """Binder of a model to contexts, which keeps the last embedder: its model is timed."""

    last: ContextualEmbedder | None = None

    def __init__(self, model: Model, context_size: int) -> None:
        self._model, self._context_size = model, context_size

    def __call__(self, corpus: Sequence[str] | None, seed: int) -> ContextualEmbedder:
        """Bind the model; see `Binder`."""
        if corpus is None:
            self.last = ContextualEmbedder(self._model, first_context(self._model))
            return self.last
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallContextWarning)  # the result counts the context's documents
            self.last = ContextualEmbedder.from_corpus(
                corpus, model=self._model, context_size=self._context_size, seed=seed
            )
        return self.last

    def with_siblings(self, embedder: TextEmbedder, corpus: Sequence[str]) -> TextEmbedder:
        """Give the siblings of a plain model their weight; see `Binder`."""
        if not self._model.identity.is_plain:
            return embedder
        seed = cast(ContextualEmbedder, embedder).context.manifest.seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallContextWarning)  # as above
            return ArithmeticEmbedder.from_corpus(
                corpus,
                model=ContextualEmbedder(self._model, first_context(self._model)),
                weight=SIBLINGS_SHARE,
                context_size=self._context_size,
                seed=seed,
            )


def _rankings(
    data: RetrievalSet,
    wanted: Sequence[str],
    embed: DenseBaseline | None,
    bind: Binder,
    other: Corpus | None,
    seeds: Sequence[int],
) -> Iterator[tuple[str, list[list[Ranking]]]]:
    """Yield the rankings of each system in each context; baselines first, so that a missing extra shows at once."""
    words = word_hits(data.corpus.texts, data.queries) if HYBRID.intersection(wanted) else []
    if BASELINES.intersection(wanted):
        found = ((system, [one]) for system, one in baseline_rankings(data, wanted, embed, words))
        yield from ((system, runs) for system, runs in found if system in wanted)
    foreign = other.texts if other else ()
    titled = word_hits(headed(data).corpus.texts, data.queries) if "headers_hybrid" in wanted else []
    yield from contextual_rankings(data, wanted, bind, foreign=foreign, seeds=seeds, words=words, headed_words=titled)


def _mean_over_contexts(
    rankings: Sequence[Sequence[Ranking]], data: RetrievalSet
) -> dict[str, Float64[np.ndarray, " queries"]]:
    """Average each metric of each query over the contexts."""
    found = [score(one, data.judgments) for one in rankings]
    return {metric: np.mean([one[metric] for one in found], axis=0) for metric in METRICS}


def _standard_library() -> Corpus:
    """Return a corpus that every machine has: some thousand docstrings of Python's library; read, never imported.

    Raises:
        CorpusError: This Python has no readable sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    documents = dict(found for path in sorted(folder.glob("*.py")) for found in _docstrings(path))
    if not documents:
        raise CorpusError(f"{folder}: expected the standard library's sources, found none. Name a foreign corpus.")
    return Corpus("python_stdlib", tuple(documents), tuple(documents.values()))


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = (ast.get_docstring(node) or "").encode(errors="ignore").decode()  # without lone surrogates
            if text.strip():
                yield f"{path.stem}:{getattr(node, 'lineno', 0)}", text
