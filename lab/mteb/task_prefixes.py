"""Prefixes of a task's texts, for models that distinguish their tasks by prefixes."""

from mteb.abstasks.task_metadata import TaskMetadata

SEARCHED = frozenset({"Retrieval", "InstructionRetrieval", "InstructionReranking", "Reranking"})  # types with a corpus
_RETRIEVAL = SEARCHED - {"Reranking"}
_QUESTIONS = frozenset(  # tasks that search questions by questions
    {
        "NanoQuoraRetrieval",
        "QuoraRetrieval",
        "QuoraRetrievalDecontaminated",
        "QuoraRetrievalHardNegatives",
        "QuoraRetrievalHardNegatives.v2",
    }
)


def task_prefixes(task: TaskMetadata) -> dict[str, str]:
    """Return the prefix of a "query" and of a "document", which is that of the context documents too.

    Source: evaluate_mteb.py of the published models. Types that it does not know are read as classification, as are
    its pairs and rerankings.
    """
    if task.name in _QUESTIONS:
        return {"query": "search_query: ", "document": "search_query: "}
    if task.type in _RETRIEVAL:
        return {"query": "search_query: ", "document": "search_document: "}
    prefix = "clustering: " if task.type == "Clustering" else "classification: "
    return {"query": prefix, "document": prefix}
