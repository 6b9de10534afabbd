"""Layout of the published models: their configs, and their tensors under their published names.

Source: configs of jxm/cde-small-v1 and -v2, and the code that made them (MIT).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.two_way.config import MODERN_BERT, NOMIC_BERT, SOFT_TOKENS, TRAIN, TwoWayConfig
from cde_rag.models.two_way.config import is_published as is_published

BACKBONES: dict[str, dict[str, Any]] = {  # what the published configs leave to a download of the backbone
    "nomic-ai/nomic-bert-2048": {
        "family": NOMIC_BERT,
        "vocab_size": 30528,
        "dim": 768,
        "layers": 12,
        "heads": 12,
        "intermediate": 3072,
        "max_positions": 2048,
    },
    "answerdotai/ModernBERT-base": {
        "family": MODERN_BERT,
        "vocab_size": 50368,
        "dim": 768,
        "layers": 22,
        "heads": 12,
        "intermediate": 1152,
        "max_positions": 8192,
        "window": 128,
        "global_every": 3,
    },
}
TOKENIZERS = {NOMIC_BERT: "google-bert/bert-base-uncased", MODERN_BERT: "answerdotai/ModernBERT-base"}
FIXED = {  # fields that may only say this; where they are missing they do
    "architecture": "transductive",
    "autoregressive_backbone": False,
    "disable_transductive_rotary_embedding": True,
    "embedding_output_dim": None,
    "limit_layers": None,
    "limit_layers_first_stage": None,
    "pooling_strategy": "mean",
    "transductive_tie_token_embeddings": False,
    "transductive_tokens_per_document": 1,
}
UNUSED = {"second_stage_model.input_ln.weight", "second_stage_model.input_ln.bias"}  # of old checkpoints; never read
SEQUENCE_DROPOUT = 0.005  # of context embeddings in training, paper §5; above 0 where there is a null embedding
LISTED = 6  # names of tensors in a message
FIRST, SECOND = "first_stage_model.", "second_stage_model."  # names of each stage's tensors begin so


def read_config(value: Mapping[str, Any], name: ModelName) -> TwoWayConfig:
    """Read the config of a published model.

    Args:
        value: Content of its config.json.
        name: Name of the model, with the options of its reading.

    Raises:
        ModelError: A backbone without a built-in table, a setting that this library does not know, or wrong sizes.
    """
    backbone = value.get("embedder")
    if not isinstance(backbone, str) or backbone not in BACKBONES:
        raise ModelError(
            f"Expected the backbone {' or '.join(BACKBONES)}, found {backbone!r}. This model cannot be read."
        )
    if value.get("dataset_backbone") not in (None, backbone):
        raise ModelError(
            f"Expected one backbone for both stages, found {backbone!r} and {value['dataset_backbone']!r}."
        )
    for field, expected in FIXED.items():
        if value.get(field, expected) != expected:
            raise ModelError(f"Expected {field} {expected!r}, found {value[field]!r}. This model cannot be read.")
    sizes = BACKBONES[backbone]
    trained = _size(value, "transductive_corpus_size")
    chosen = name.semantics or TRAIN
    asked: dict[str, Any] = {field: getattr(name, field) for field in ("attention", "query_prefix", "document_prefix")}
    return TwoWayConfig(
        **sizes,
        **{field: value for field, value in asked.items() if value is not None},
        name=str(name),
        semantics=chosen,
        pooling=_pooling(value) if chosen == TRAIN else "text",
        trained_context_size=trained,
        context_size=trained if name.context_size is None else name.context_size,
        max_length=_size(value, "max_seq_length"),
        null_embedding=_share(value, "transductive_sequence_dropout_prob") > 0,
    )


def layout(config: TwoWayConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a published model."""
    dim = config.dim
    backbone = dict(_modern_bert(config) if config.is_modern else _nomic_bert(config))
    return {
        **{f"{FIRST}embedder.{name}": shape for name, shape in backbone.items()},
        **_two_layers(f"{FIRST}mlp", dim, dim),
        **{f"{SECOND}backbone.{name}": shape for name, shape in backbone.items()},
        **_two_layers(f"{SECOND}prompt_projection", dim, SOFT_TOKENS * dim),
        **_two_layers(f"{SECOND}output_projection", dim, dim),
        **({f"{SECOND}sequence_dropout_null_embedding": (dim,)} if config.null_embedding else {}),
    }


def check_tensors(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check the names and shapes of tensors against those of `layout`.

    Raises:
        ModelError: Tensors are missing, unknown or of another shape; the message lists them.
    """
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys() - UNUSED)
    if missing or unknown:
        raise ModelError(
            f"Expected the {len(expected)} tensors that the config describes, found {len(found)}; missing: "
            f"{_listed(missing)}; unknown: {_listed(unknown)}. Is it the right config for these weights?"
        )
    wrong = [f"{name} {found[name]} instead of {shape}" for name, shape in expected.items() if found[name] != shape]
    if wrong:
        raise ModelError(f"Tensors are not those that the config describes: {_listed(wrong)}.")


def published_config(config: TwoWayConfig) -> dict[str, Any]:
    """Return the published config that `read_config` reads as this one.

    Raises:
        ModelError: There is no published backbone of its sizes, or its semantics are not those of training.
    """
    found = [
        name
        for name, sizes in BACKBONES.items()
        if all(getattr(config, field) == value for field, value in sizes.items())
    ]
    if not found or config.semantics != TRAIN:
        raise ModelError(
            f"Expected a {TRAIN!r} model with the backbone {' or '.join(BACKBONES)}, found {config.semantics!r} and "
            f"{config.layers} layers of {config.dim} dimensions of {config.family}. It cannot be written."
        )
    return {
        "embedder": found[0],
        "transductive_corpus_size": config.trained_context_size,
        "transductive_sequence_dropout_prob": SEQUENCE_DROPOUT if config.null_embedding else 0.0,
        "pool_ignore_contextual_tokens": config.pooling != "sequence",
        "pool_ignore_instruction_tokens": config.pooling == "text_after_prefix",
        "max_seq_length": config.max_length,
    }


def _two_layers(name: str, dim: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.0.weight": (dim, dim),
        f"{name}.0.bias": (dim,),
        f"{name}.2.weight": (outputs, dim),
        f"{name}.2.bias": (outputs,),
    }


def _nomic_bert(config: TwoWayConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, inner = config.dim, config.intermediate
    yield "embeddings.word_embeddings.weight", (config.vocab_size, dim)
    yield "embeddings.token_type_embeddings.weight", (2, dim)
    yield from (("emb_ln.weight", (dim,)), ("emb_ln.bias", (dim,)))
    for number in range(config.layers):
        layer = f"encoder.layers.{number}."
        yield f"{layer}attn.Wqkv.weight", (3 * dim, dim)
        yield f"{layer}attn.out_proj.weight", (dim, dim)
        yield from ((f"{layer}mlp.fc11.weight", (inner, dim)), (f"{layer}mlp.fc12.weight", (inner, dim)))
        yield f"{layer}mlp.fc2.weight", (dim, inner)
        yield from ((f"{layer}norm{norm}.{part}", (dim,)) for norm in (1, 2) for part in ("weight", "bias"))


def _modern_bert(config: TwoWayConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, inner = config.dim, config.intermediate
    yield "embeddings.tok_embeddings.weight", (config.vocab_size, dim)
    yield "embeddings.norm.weight", (dim,)
    for number in range(config.layers):
        layer = f"layers.{number}."
        if number > 0:
            yield f"{layer}attn_norm.weight", (dim,)
        yield f"{layer}attn.Wqkv.weight", (3 * dim, dim)
        yield f"{layer}attn.Wo.weight", (dim, dim)
        yield f"{layer}mlp_norm.weight", (dim,)
        yield f"{layer}mlp.Wi.weight", (2 * inner, dim)
        yield f"{layer}mlp.Wo.weight", (dim, inner)
    yield "final_norm.weight", (dim,)


def _pooling(value: Mapping[str, Any]) -> str:
    """Return the pooling of the training code from a config's flags; missing flags have its defaults."""
    if not _flag(value, "pool_ignore_contextual_tokens", missing=True):
        return "sequence"
    return "text_after_prefix" if _flag(value, "pool_ignore_instruction_tokens", missing=False) else "text"


def _flag(value: Mapping[str, Any], field: str, *, missing: bool) -> bool:
    found = value.get(field, missing)
    if not isinstance(found, bool):
        raise ModelError(f"The config's {field} has to be true or false, found {found!r}.")
    return found


def _size(value: Mapping[str, Any], field: str) -> int:
    found = value.get(field)
    if type(found) is not int or found < 1:
        raise ModelError(f"The config's {field} has to be a number of at least 1, found {found!r}.")
    return found


def _share(value: Mapping[str, Any], field: str) -> float:
    found = value.get(field, 0.0)
    if type(found) not in (int, float) or not 0 <= found <= 1:
        raise ModelError(f"The config's {field} has to be a number in 0 … 1, found {found!r}.")
    return float(found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more
