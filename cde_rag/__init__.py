"""Contextual document embeddings: a document's vector depends on its corpus.

Everything here is loaded on first use: `import cde_rag` itself reads no model, no torch and no store. Errors are in
`cde_rag.errors`, classes of results where they are made.
"""

import importlib
from typing import TYPE_CHECKING

from cde_rag._version import __version__ as __version__
from cde_rag.errors import CDEError, CDEWarning, old_names, warn_of_old_name

if TYPE_CHECKING:
    from cde_rag.collection.async_collection import AsyncCollection
    from cde_rag.collection.collection import Collection
    from cde_rag.collection.tenants import Tenants
    from cde_rag.context.context import Context
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.plain_embedders import FunctionEmbedder, PlainEmbedder
    from cde_rag.embedders.process_pool import ProcessPool
    from cde_rag.embedders.protocol import EmbedderOptions
    from cde_rag.evaluation import evaluate
    from cde_rag.indexing.canary import Canary
    from cde_rag.models import CDEModel
    from cde_rag.records import Hit, Record

__all__ = [
    "AsyncCollection",
    "CDEError",
    "CDEModel",
    "CDEWarning",
    "Canary",
    "Collection",
    "Context",
    "ContextualEmbedder",
    "EmbedderOptions",
    "FunctionEmbedder",
    "Hit",
    "PlainEmbedder",
    "ProcessPool",
    "Record",
    "Tenants",
    "evaluate",
]

_HOMES = {
    "AsyncCollection": "cde_rag.collection.async_collection",
    "CDEModel": "cde_rag.models",
    "Canary": "cde_rag.indexing.canary",
    "Collection": "cde_rag.collection.collection",
    "Context": "cde_rag.context.context",
    "ContextualEmbedder": "cde_rag.embedders.contextual",
    "EmbedderOptions": "cde_rag.embedders.protocol",
    "FunctionEmbedder": "cde_rag.embedders.plain_embedders",
    "Hit": "cde_rag.records",
    "PlainEmbedder": "cde_rag.embedders.plain_embedders",
    "ProcessPool": "cde_rag.embedders.process_pool",
    "Record": "cde_rag.records",
    "Tenants": "cde_rag.collection.tenants",
    "evaluate": "cde_rag.evaluation",
}
_OLD_HOMES = {  # names that 0.2 had here; they go in 1.0
    "AddReport": "cde_rag.indexing.upsert",
    "ArithmeticEmbedder": "cde_rag.embedders.plain_embedders",
    "CanaryError": "cde_rag.errors",
    "ContextError": "cde_rag.errors",
    "ContextFormatError": "cde_rag.errors",
    "ContextMismatchError": "cde_rag.errors",
    "ContextMissingError": "cde_rag.errors",
    "ContextReusedWarning": "cde_rag.errors",
    "CorpusError": "cde_rag.errors",
    "Damage": "cde_rag.stores.base",
    "Drift": "cde_rag.indexing.drift",
    "FilterError": "cde_rag.errors",
    "Group": "cde_rag.search.grouping",
    "Inspection": "cde_rag.collection.info",
    "MissingExtraError": "cde_rag.errors",
    "ModelError": "cde_rag.errors",
    "ParentHit": "cde_rag.search.grouping",
    "PartialContextWarning": "cde_rag.errors",
    "PoolError": "cde_rag.errors",
    "Progress": "cde_rag.indexing.upsert",
    "Recontextualization": "cde_rag.indexing.backfill",
    "ResumeError": "cde_rag.errors",
    "Searcher": "cde_rag.search.searcher",
    "SmallContextWarning": "cde_rag.errors",
    "StoreError": "cde_rag.errors",
    "StoreFormatError": "cde_rag.errors",
    "TenantError": "cde_rag.errors",
    "TruncationWarning": "cde_rag.errors",
    "UnknownFieldWarning": "cde_rag.errors",
}


if not TYPE_CHECKING:  # a checker knows the names from above, and reports the others

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name == "recontextualize":
            warn_of_old_name("cde_rag.recontextualize(collection)", "collection.recontextualize()")
            return importlib.import_module(_HOMES["Collection"]).Collection.recontextualize
        return old_names(__name__, {old: (home, old) for old, home in _OLD_HOMES.items()})(name)


def __dir__() -> list[str]:
    return sorted(__all__)
