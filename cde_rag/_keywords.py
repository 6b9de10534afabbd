"""Keyword arguments under the names of other libraries: the error names the keyword that is meant."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Final, ParamSpec, TypeVar

_MEANT: Final = (  # words for one thing, ours first or LangChain's
    ("k", "top_k", "limit", "n_results", "similarity_top_k", "num_results", "size", "n"),
    ("where", "filter", "filters", "query_filter", "expr"),
    ("score_threshold", "min_score", "threshold", "similarity_cutoff"),
    ("by", "mode", "search_type", "query_mode", "ranking"),
    ("texts", "documents", "docs"),
    ("metadata", "metadatas", "payloads", "payload"),
    ("ids", "id", "doc_ids"),
    ("store", "path", "persist_directory", "persist_dir", "collection_name"),
    ("model", "model_name", "embed_model"),
    ("embedder", "embedding", "embeddings", "embedding_function"),
    ("offset", "skip", "start"),
    ("group_by", "group_key"),
    ("diversity", "lambda_mult"),
    ("candidates", "fetch_k", "prefetch_k", "num_candidates"),
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def named_keywords(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function's TypeError for an unknown keyword name the one that is meant, or those that there are."""
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]

    @functools.wraps(function)
    def _call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        for name in named:
            if name not in known:
                raise TypeError(_message(function.__name__, name, known))
        return function(*arguments, **named)

    return _call


def _message(function: str, name: str, known: Iterable[str]) -> str:
    meant = [word for words in _MEANT if name in words for word in words if word in known]
    if meant:
        return f"{function} has no argument {name!r}: write {meant[0]}=… for it."
    return f"{function} has no argument {name!r}: it takes {', '.join(known)}."
