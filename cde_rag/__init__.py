"""Contextual document embeddings: a document's vector depends on the corpus it lives in.

Everything here is loaded on first use: `import cde_rag` itself reads no model, no torch and no store.
"""

import importlib
from typing import TYPE_CHECKING

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
    ResumeError,
    SmallContextWarning,
    StoreError,
    StoreFormatError,
    TenantError,
    TruncationWarning,
)

if TYPE_CHECKING:
    from cde_rag.canary import Canary
    from cde_rag.collection import Collection
    from cde_rag.context import Context
    from cde_rag.drift import Drift
    from cde_rag.embedder import ContextualEmbedder
    from cde_rag.embedding import EmbedderOptions
    from cde_rag.evaluation import evaluate
    from cde_rag.generations import Recontextualization
    from cde_rag.grouping import Group, ParentHit
    from cde_rag.inspection import Inspection
    from cde_rag.model import CDEModel
    from cde_rag.plain_embedder import PlainEmbedder
    from cde_rag.recontextualization import recontextualize
    from cde_rag.searcher import Searcher
    from cde_rag.stores.base import Damage, Hit, Record
    from cde_rag.tenants import Tenants
    from cde_rag.writing import AddReport, Progress

__version__ = "0.1.0.dev0"

__all__ = [
    "AddReport",
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
    "Group",
    "Hit",
    "Inspection",
    "MissingExtraError",
    "ModelError",
    "ParentHit",
    "PartialContextWarning",
    "PlainEmbedder",
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
    "evaluate",
    "recontextualize",
]

_HOMES = {
    "AddReport": "cde_rag.writing",
    "CDEModel": "cde_rag.model",
    "Canary": "cde_rag.canary",
    "Collection": "cde_rag.collection",
    "Context": "cde_rag.context",
    "ContextualEmbedder": "cde_rag.embedder",
    "Damage": "cde_rag.stores.base",
    "Drift": "cde_rag.drift",
    "EmbedderOptions": "cde_rag.embedding",
    "Group": "cde_rag.grouping",
    "Hit": "cde_rag.stores.base",
    "Inspection": "cde_rag.inspection",
    "ParentHit": "cde_rag.grouping",
    "PlainEmbedder": "cde_rag.plain_embedder",
    "Progress": "cde_rag.writing",
    "Recontextualization": "cde_rag.generations",
    "Record": "cde_rag.stores.base",
    "Searcher": "cde_rag.searcher",
    "Tenants": "cde_rag.tenants",
    "evaluate": "cde_rag.evaluation",
    "recontextualize": "cde_rag.recontextualization",
}


if not TYPE_CHECKING:  # a checker knows the names from above, and reports the others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
