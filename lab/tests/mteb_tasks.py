"""Tasks for MTEB that need no network, of each kind that texts come in."""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.task_metadata import TaskMetadata


def metadata(name: str, kind: str, main_score: str) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        description=name,
        type=kind,
        category="t2t",
        dataset={"path": name, "revision": "1"},
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )


def local(kind: type[AbsTask], described: TaskMetadata, dataset: Any, **settings: object) -> Any:
    task = type("Local", (kind,), {"metadata": described, **settings})()
    task.dataset, task.data_loaded = dataset, True
    return task


def classification(name: str, rows: Sequence[Mapping[str, str]]) -> Any:
    """Rows with split, text and label; trained on six texts of each label."""
    splits = {
        split: Dataset.from_list(
            [{"text": row["text"], "label": row["label"]} for row in rows if row["split"] == split]
        )
        for split in ("train", "test")
    }
    settings = {"samples_per_label": 6, "n_experiments": 1}
    return local(AbsTaskClassification, metadata(name, "Classification", "accuracy"), DatasetDict(splits), **settings)


def clustering(name: str, rows: Sequence[Mapping[str, str]]) -> Any:
    data = Dataset.from_list([{"sentences": row["text"], "labels": row["label"]} for row in rows])
    settings = {"max_fraction_of_documents_to_embed": 0.5, "max_documents_per_cluster": 40, "n_clusters": 3}
    return local(AbsTaskClustering, metadata(name, "Clustering", "v_measure"), DatasetDict({"test": data}), **settings)


def sts(name: str, rows: Sequence[tuple[str, str, float]]) -> Any:
    columns = ("sentence1", "sentence2", "score")
    data = Dataset.from_list([dict(zip(columns, row, strict=True)) for row in rows])
    return local(AbsTaskSTS, metadata(name, "STS", "cosine_spearman"), DatasetDict({"test": data}))


def pairs(name: str, rows: Sequence[tuple[str, str, int]]) -> Any:
    columns = ("sentence1", "sentence2", "labels")
    data = Dataset.from_list([dict(zip(columns, row, strict=True)) for row in rows])
    return local(AbsTaskPairClassification, metadata(name, "PairClassification", "max_ap"), DatasetDict({"test": data}))


def reranking(
    name: str, corpus: Mapping[str, str], queries: Mapping[str, str], judged: Mapping[str, Mapping[str, int]]
) -> Any:
    """Each query ranks the first half of the corpus and what is relevant to it."""
    first = list(corpus)[: len(corpus) // 2]
    data = {
        "corpus": Dataset.from_list([{"id": key, "text": text, "title": ""} for key, text in corpus.items()]),
        "queries": Dataset.from_list([{"id": key, "text": text} for key, text in queries.items()]),
        "relevant_docs": {query: dict(grades) for query, grades in judged.items()},
        "top_ranked": {query: list(dict.fromkeys([*first, *judged[query]])) for query in queries},
    }
    described = metadata(name, "Reranking", "map_at_1000")
    return local(AbsTaskRetrieval, described, {"default": {"test": data}})
