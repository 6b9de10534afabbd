"""Tasks for MTEB: by name, and made of local folders, which need no network."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import mteb
from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs]
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

from cde_rag._files import user_path
from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import RetrievalSet, read_beir


class LocalRetrieval(AbsTaskRetrieval):
    """A retrieval set of this machine as a task. A document with its query's id is the query, as for `evaluate`."""

    ignore_identical_ids = True

    def __init__(self, data: RetrievalSet, split: str) -> None:
        self.metadata = TaskMetadata(
            name=re.sub(r"[^\w.-]", "_", data.corpus.name),
            description=f"The retrieval set {data.corpus.name}",
            type="Retrieval",
            category="t2t",
            dataset={"path": data.corpus.name, "revision": _revision(data)},
            eval_splits=[split],
            eval_langs=["und-Latn"],  # undetermined
            main_score="ndcg_at_10",
        )
        super().__init__()
        self.dataset = {
            "default": {
                split: {
                    "corpus": _rows(data.corpus.ids, data.corpus.texts),
                    "queries": _rows(data.query_ids, data.queries),
                    "relevant_docs": {
                        query: dict(judged) for query, judged in zip(data.query_ids, data.judgments, strict=True)
                    },
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def local_retrieval_task(folder: str | Path | RetrievalSet, *, split: str = "test") -> AbsTaskRetrieval:
    """Create an MTEB task from a folder in BEIR's layout, scored as by `cde_rag.evaluate` (NDCG@10).

    Args:
        folder: As for `cde_rag.evaluate`; or a set that `read_beir` has read, such as one of fewer queries.
        split: Name of the judgments' file.

    Raises:
        CorpusError: The folder is invalid, or its documents were split into passages.
    """
    data = folder if isinstance(folder, RetrievalSet) else read_beir(folder, split=split)
    if len(set(data.corpus.ids)) < len(data.corpus.ids):
        raise CorpusError(
            f"{data.corpus.name}: expected uncut documents, found passages: MTEB scores one vector for each document. "
            "Read the set without max_characters, or use cde_rag.evaluate."
        )
    return LocalRetrieval(data, split)


def find_tasks(names: Sequence[str]) -> list[AbsTask]:
    """Find tasks by MTEB's names (`SciFact`), those of complete benchmarks (`MTEB(eng, v2)`), and local folders.

    Raises:
        CorpusError: No such task, benchmark or folder, or two of one name.
    """
    tasks = [task for name in names for task in _found(name)]
    known = [task.metadata.name for task in tasks]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise CorpusError(f"Expected tasks of different names, found {', '.join(twice)} more than once.")
    return tasks


def _found(name: str) -> Iterator[AbsTask]:
    if user_path(name).is_dir():
        yield local_retrieval_task(name)
        return
    try:
        yield mteb.get_task(name)
    except KeyError as no_task:
        try:
            yield from mteb.get_benchmark(name).tasks
        except KeyError:
            raise CorpusError(
                f"Expected a task or benchmark of MTEB, or a folder in BEIR's layout, found {name!r}: {no_task.args[0]}"
            ) from no_task


def _rows(ids: Sequence[str], texts: Sequence[str]) -> Dataset:
    return cast(Any, Dataset).from_dict({"id": list(ids), "text": list(texts)})


def _revision(data: RetrievalSet) -> str:
    """Compute a sha256 over all that a score depends on."""
    judgments = [sorted(judged.items()) for judged in data.judgments]
    content = [data.corpus.ids, data.corpus.texts, data.query_ids, data.queries, judgments]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
