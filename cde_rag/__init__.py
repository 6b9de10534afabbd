"""Contextual document embeddings: a document's vector depends on its corpus.

Everything here is loaded on first use: `import cde_rag` itself reads no model, no torch and no store.
"""

import importlib
from typing import TYPE_CHECKING

from cde_rag._version import __version__ as __version__
from cde_rag.errors import (
    CanaryError,
    CDEError,
    CDEWarning,
    ContextError,
    ContextFormatError,
    ContextMismatchError,
    ContextMissingError,
    ContextReusedWarning,
    CorpusError,
    FilterError,
    MissingExtraError,
    ModelError,
    PartialContextWarning,
    PoolError,
    ResumeError,
    SmallContextWarning,
    StoreError,
    StoreFormatError,
    TenantError,
    TruncationWarning,
    UnknownFieldWarning,
)

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection, recontextualize
    from cde_rag.collection.info import Inspection
    from cde_rag.collection.tenants import Tenants
    from cde_rag.context.context import Context
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, FunctionEmbedder, PlainEmbedder
    from cde_rag.embedders.process_pool import ProcessPool
    from cde_rag.embedders.protocol import EmbedderOptions
    from cde_rag.evaluation import evaluate
    from cde_rag.indexing.backfill import Recontextualization
    from cde_rag.indexing.canary import Canary
    from cde_rag.indexing.drift import Drift
    from cde_rag.indexing.upsert import AddReport, Progress
    from cde_rag.models import CDEModel
    from cde_rag.search.grouping import Group, ParentHit
    from cde_rag.search.searcher import Searcher
    from cde_rag.stores.base import Damage, Hit, Record

__all__ = [
    "AddReport",
    "ArithmeticEmbedder",
    "CDEError",
    "CDEModel",
    "CDEWarning",
    "Canary",
    "CanaryError",
    "Collection",
    "Context",
    "ContextError",
    "ContextFormatError",
    "ContextMismatchError",
    "ContextMissingError",
    "ContextReusedWarning",
    "ContextualEmbedder",
    "CorpusError",
    "Damage",
    "Drift",
    "EmbedderOptions",
    "FilterError",
    "FunctionEmbedder",
    "Group",
    "Hit",
    "Inspection",
    "MissingExtraError",
    "ModelError",
    "ParentHit",
    "PartialContextWarning",
    "PlainEmbedder",
    "PoolError",
    "ProcessPool",
    "Progress",
    "Recontextualization",
    "Record",
    "ResumeError",
    "Searcher",
    "SmallContextWarning",
    "StoreError",
    "StoreFormatError",
    "TenantError",
    "Tenants",
    "TruncationWarning",
    "UnknownFieldWarning",
    "evaluate",
    "recontextualize",
]

_HOMES = {
    "AddReport": "cde_rag.indexing.upsert",
    "ArithmeticEmbedder": "cde_rag.embedders.plain_embedders",
    "CDEModel": "cde_rag.models",
    "Canary": "cde_rag.indexing.canary",
    "Collection": "cde_rag.collection.collection",
    "Context": "cde_rag.context.context",
    "ContextualEmbedder": "cde_rag.embedders.contextual",
    "Damage": "cde_rag.stores.base",
    "Drift": "cde_rag.indexing.drift",
    "EmbedderOptions": "cde_rag.embedders.protocol",
    "FunctionEmbedder": "cde_rag.embedders.plain_embedders",
    "Group": "cde_rag.search.grouping",
    "Hit": "cde_rag.stores.base",
    "Inspection": "cde_rag.collection.info",
    "ParentHit": "cde_rag.search.grouping",
    "PlainEmbedder": "cde_rag.embedders.plain_embedders",
    "ProcessPool": "cde_rag.embedders.process_pool",
    "Progress": "cde_rag.indexing.upsert",
    "Recontextualization": "cde_rag.indexing.backfill",
    "Record": "cde_rag.stores.base",
    "Searcher": "cde_rag.search.searcher",
    "Tenants": "cde_rag.collection.tenants",
    "evaluate": "cde_rag.evaluation",
    "recontextualize": "cde_rag.collection.collection",
}


if not TYPE_CHECKING:  # a checker knows the names from above, and reports the others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
