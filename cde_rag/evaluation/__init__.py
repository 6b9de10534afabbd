"""Evaluation of a contextual model's retrieval, always compared with baselines that need no such model."""

from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir
from cde_rag.evaluation.conteb import read_conteb
from cde_rag.evaluation.harness import EvaluationProgress, evaluate
from cde_rag.evaluation.report import SYSTEMS, Evaluation, SetResult

__all__ = [
    "SYSTEMS",
    "Corpus",
    "Evaluation",
    "EvaluationProgress",
    "RetrievalSet",
    "SetResult",
    "evaluate",
    "read_beir",
    "read_conteb",
]
