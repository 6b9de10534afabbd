"""Training of contextual embedding models: clustered contrastive learning with the context disjoint from the batch.

Everything here is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cde_rag_training.config import TrainingConfig
    from cde_rag_training.data.pairs import Pair
    from cde_rag_training.data.preparation import PrepareConfig, prepare
    from cde_rag_training.data.prepared import Prepared
    from cde_rag_training.loop.guard import TrainingError
    from cde_rag_training.loop.training import train

__all__ = ["Pair", "PrepareConfig", "Prepared", "TrainingConfig", "TrainingError", "prepare", "train"]

_HOMES = {
    "Pair": "cde_rag_training.data.pairs",
    "PrepareConfig": "cde_rag_training.data.preparation",
    "Prepared": "cde_rag_training.data.prepared",
    "TrainingConfig": "cde_rag_training.config",
    "TrainingError": "cde_rag_training.loop.guard",
    "prepare": "cde_rag_training.data.preparation",
    "train": "cde_rag_training.loop.training",
}


if not TYPE_CHECKING:  # a checker knows the names from above, and reports the others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
