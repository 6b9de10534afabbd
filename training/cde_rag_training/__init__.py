"""Training of contextual embedding models: clustered contrastive learning with the context disjoint from the batch.

Everything here is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cde_rag_training.config import TrainingConfig
    from cde_rag_training.guard import TrainingError
    from cde_rag_training.pairs import Pair
    from cde_rag_training.preparation import PrepareConfig, prepare
    from cde_rag_training.prepared import Prepared
    from cde_rag_training.training import train

__all__ = ["Pair", "PrepareConfig", "Prepared", "TrainingConfig", "TrainingError", "prepare", "train"]

_HOMES = {
    "Pair": "cde_rag_training.pairs",
    "PrepareConfig": "cde_rag_training.preparation",
    "Prepared": "cde_rag_training.prepared",
    "TrainingConfig": "cde_rag_training.config",
    "TrainingError": "cde_rag_training.guard",
    "prepare": "cde_rag_training.preparation",
    "train": "cde_rag_training.training",
}


if not TYPE_CHECKING:  # a checker knows the names from above, and reports the others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
