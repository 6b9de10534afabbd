"""Model metadata for MTEB; unknown facts are left empty."""

from pathlib import Path
from typing import Any

from mteb.models.model_meta import ModelMeta, ScoringFunction

from cde_rag.model import CDEModel, model_files
from cde_rag.model.names import ModelName
from cde_rag.model.pair.pair_network import PairNetwork

_ENGLISH = ["eng-Latn"]
_BUNDLED: dict[str, Any] = {  # NOTICE
    "languages": _ENGLISH,
    "license": "apache-2.0",
    "open_weights": True,
    "adapted_from": "sentence-transformers/all-MiniLM-L6-v2",
}
_PAIRS: dict[str, Any] = {**_BUNDLED, "adapted_from": "intfloat/multilingual-e5-small"}  # the larger half
_PUBLISHED: dict[str, dict[str, Any]] = {  # their cards on the hub
    "jxm/cde-small-v1": {
        "languages": _ENGLISH,
        "license": "mit",
        "open_weights": True,
        "adapted_from": "nomic-ai/nomic-bert-2048",
    },
    "jxm/cde-small-v2": {
        "languages": _ENGLISH,
        "license": "mit",
        "open_weights": True,
        "adapted_from": "answerdotai/ModernBERT-base",
    },
}
_UNKNOWN: dict[str, Any] = {"languages": None, "license": None, "open_weights": None}


def model_meta(model: CDEModel, *, context_size: int) -> ModelMeta:
    """Return a model's metadata; MTEB keeps results of another attention, semantics or context size apart.

    Bundled models are called `cde-rag/<name>`, folders `local/<name>`; their revision is that of their weights.
    """
    named, identity = ModelName.parse(model.identity.name), model.identity
    parameters = list(model.network.parameters())
    facts: dict[str, Any]
    if model_files.packaged(named.base) is not None:
        name, facts = f"cde-rag/{named.base}", _PAIRS if isinstance(model.network, PairNetwork) else _BUNDLED
        if named.base in model_files.MULTILINGUAL:
            facts = facts | {"languages": None}  # about 100, which the card of multilingual-e5-small lists
    elif named.revision is not None:
        name, facts = named.base, _PUBLISHED.get(named.base, _UNKNOWN)
    else:
        name, facts = f"local/{Path(named.base).name}", _UNKNOWN
    return ModelMeta(
        loader=None,
        name=name,
        revision=named.revision or identity.weights_sha256[:40],
        release_date=None,
        n_parameters=sum(each.numel() for each in parameters),
        memory_usage_mb=sum(each.numel() * each.element_size() for each in parameters) / 2**20,
        max_tokens=identity.max_length,
        embed_dim=identity.dim,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch", "safetensors"],
        similarity_fn_name=ScoringFunction.COSINE,
        use_instructions=identity.roles == "prefix",
        training_datasets=None,
        experiment_kwargs={
            "attention": identity.attention,
            "semantics": identity.semantics,
            "context_size": context_size,
        },
        **facts,
    )
