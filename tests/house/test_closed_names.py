"""Closed sets of names are types in signatures, so that a checker finds a wrong one; each is written in one place."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import pytest

from cde_rag import AsyncCollection, Collection, ContextualEmbedder, EmbedderOptions
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.evaluation.ranking import rank_hybrid
from cde_rag.models import CDEModel
from cde_rag.models.named import named_model
from cde_rag.models.rerankers import named_reranker
from cde_rag.models.runtimes.attention import Attention
from cde_rag.models.runtimes.runtime_choice import NUMPY, RUNTIMES, Runtime
from cde_rag.models.runtimes.stage_runner import Dtype
from cde_rag.models.runtimes.torch_runner import DTYPES
from cde_rag.search.fusion import RANKINGS, WEIGHTS, Fusion, Ranking, fuse
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss.index import FaissIndexKind
from cde_rag.stores.postgres import PgTenants, PgVectorStore
from cde_rag.stores.postgres.index import PgIndexKind, PgQuantization

NAMES = {
    "attn_implementation": Attention,
    "by": Ranking,
    "dtype": Dtype,
    "fusion": Fusion,
    "runtime": Runtime,
    "strategy": Strategy,
}
OF_POSTGRES = {"index": PgIndexKind, "quantization": PgQuantization}
CALLS: list[Callable[..., Any]] = [
    ArithmeticEmbedder.from_corpus,
    CDEModel,
    CDEModel.from_pretrained,
    CDEModel.shared,
    ContextualEmbedder.from_corpus,
    EmbedderOptions,
    fuse,
    named_model,
    named_reranker,
    rank_hybrid,
    *(
        getattr(kind, name)
        for kind in (AsyncCollection, Collection)
        for name in ("drift", "recontextualize", "search", "search_batch", "search_groups", "searcher")
    ),
]


def values(hint: Any) -> set[Any]:
    """The names in a hint, and what else it allows."""
    return set().union(*map(values, get_args(hint))) if get_args(hint) else {hint}


@pytest.mark.parametrize(
    ("call", "names"),
    [
        *((call, NAMES) for call in CALLS),
        *((call, {"index": FaissIndexKind}) for call in (FaissStore, FaissStore.reindex)),
        *((call, OF_POSTGRES) for call in (PgTenants, PgVectorStore, PgVectorStore.reindex)),
    ],
    ids=lambda each: getattr(each, "__qualname__", ""),
)
def test_a_closed_set_of_names_is_a_type(call: Callable[..., Any], names: dict[str, Any]) -> None:
    hints = {name: each.annotation for name, each in inspect.signature(call).parameters.items() if name in names}
    assert hints
    for name, hint in hints.items():
        assert values(hint) >= set(get_args(names[name]))
        assert str not in values(hint)


def test_the_names_are_those_that_work() -> None:
    assert get_args(Dtype) == tuple(DTYPES)
    assert get_args(Fusion) == tuple(WEIGHTS)
    assert get_args(Ranking) == (*RANKINGS, "words")
    assert get_args(Runtime) == (*RUNTIMES, NUMPY)
