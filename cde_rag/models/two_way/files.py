"""Files of a two-way model: found, checked against the digests that `convert` wrote, and read without torch."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from cde_rag._files import file_sha256, read_file
from cde_rag.errors import ModelError, require
from cde_rag.models.files import hub
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import (
    CONFIG,
    INDEX,
    TOKENIZER,
    WEIGHTS,
    check_size,
    read_index,
    read_json,
    weight_files,
)
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way.config import BERT, MODERN_BERT, NOMIC_BERT, TRAIN, TwoWayConfig

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
TOKENIZERS = {
    NOMIC_BERT: "google-bert/bert-base-uncased",
    MODERN_BERT: "answerdotai/ModernBERT-base",
    BERT: "google-bert/bert-base-uncased",
}
TOKENS = "transductive_tokens_per_document"
BACKBONE = "backbone"  # field with the sizes of a backbone that is none of `BACKBONES`; the family is the embedder
SIZES = ("vocab_size", "dim", "layers", "heads", "intermediate", "max_positions")  # of every backbone, in that field
OWN_SIZES = {  # all of that field, with their types
    **dict.fromkeys((*SIZES, "window", "global_every", "first_stage_layers", "soft_tokens"), int),
    **dict.fromkeys(("theta", "local_theta", "eps"), float),
    "context_positions": bool,
}
FIXED = {  # fields that may only say this; where they are missing they do
    "architecture": "transductive",
    "autoregressive_backbone": False,
    "disable_transductive_rotary_embedding": True,
    "embedding_output_dim": None,
    "pooling_strategy": "mean",
    "transductive_tie_token_embeddings": False,
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
        ModelError: A backbone without a built-in table or sizes of its own, a setting that this library does not know,
            or wrong sizes.
    """
    backbone = value.get("embedder")
    if value.get("dataset_backbone") not in (None, backbone):
        raise ModelError(
            f"Expected one backbone for both stages, found {backbone!r} and {value['dataset_backbone']!r}."
        )
    for field, expected in FIXED.items():
        if value.get(field, expected) != expected:
            raise ModelError(f"Expected {field} {expected!r}, found {value[field]!r}. This model cannot be read.")
    sizes = _sizes(value)
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
        tokens_per_document=_size(value, TOKENS) if TOKENS in value else 1,
        null_embedding=_share(value, "transductive_sequence_dropout_prob") > 0,
    )


def layout(config: TwoWayConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a published model."""
    dim = config.dim
    return {
        **{f"{FIRST}embedder.{name}": shape for name, shape in backbone_layout(config.of_first_stage).items()},
        **_two_layers(f"{FIRST}mlp", dim, dim),
        **{f"{SECOND}backbone.{name}": shape for name, shape in backbone_layout(config).items()},
        **_two_layers(f"{SECOND}prompt_projection", dim, config.soft_tokens * dim),
        **_two_layers(f"{SECOND}output_projection", dim, dim),
        **({f"{SECOND}sequence_dropout_null_embedding": (dim,)} if config.null_embedding else {}),
    }


def backbone_layout(config: TwoWayConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of one backbone, that of the second stage."""
    return dict(_TENSORS[config.family](config))


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

    A backbone that is none of the published ones, or fewer layers of one, are named by family and sizes.

    Raises:
        ModelError: Its semantics are not those of training.
    """
    if config.semantics != TRAIN:
        raise ModelError(
            f"Expected a {TRAIN!r} model, found semantics {config.semantics!r}, which are for reading alone. It cannot "
            "be written."
        )
    usual = {each.name: each.default for each in fields(config)}
    own = {field: getattr(config, field) for field in OWN_SIZES if getattr(config, field) != usual[field]}
    found = [name for name, sizes in BACKBONES.items() if {"family": config.family, **own} == sizes]
    return {
        **({"embedder": found[0]} if found else {"embedder": config.family, BACKBONE: own}),
        "transductive_corpus_size": config.trained_context_size,
        **({TOKENS: config.tokens_per_document} if config.tokens_per_document > 1 else {}),
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


def _bert(config: TwoWayConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, inner = config.dim, config.intermediate
    rows = {"word": config.vocab_size, "position": config.max_positions, "token_type": 2}
    yield from ((f"embeddings.{kind}_embeddings.weight", (count, dim)) for kind, count in rows.items())
    yield from ((f"embeddings.LayerNorm.{part}", (dim,)) for part in ("weight", "bias"))
    linear = {f"attention.self.{name}": (dim, dim) for name in ("query", "key", "value")}
    linear |= {"attention.output.dense": (dim, dim), "intermediate.dense": (inner, dim), "output.dense": (dim, inner)}
    for number in range(config.layers):
        layer = f"encoder.layer.{number}."
        for name, shape in linear.items():
            yield from ((f"{layer}{name}.weight", shape), (f"{layer}{name}.bias", shape[:1]))
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            yield from ((f"{layer}{name}.{part}", (dim,)) for part in ("weight", "bias"))


_TENSORS = {NOMIC_BERT: _nomic_bert, MODERN_BERT: _modern_bert, BERT: _bert}  # of a backbone


def _sizes(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return family and sizes of the backbone that a config names, or describes itself."""
    backbone = value.get("embedder")
    if not isinstance(backbone, str):
        raise ModelError(f"Expected a backbone's name as the config's embedder, found {backbone!r}.")
    if backbone in BACKBONES:
        return BACKBONES[backbone] | _limits(value, BACKBONES[backbone]["layers"])
    given: Any = value.get(BACKBONE)
    if backbone not in _TENSORS or not isinstance(given, dict):
        raise ModelError(
            f"Expected the backbone {' or '.join(BACKBONES)}, or a family ({', '.join(_TENSORS)}) with sizes in "
            f"{BACKBONE!r}, found {backbone!r}. This model cannot be read."
        )
    sizes = cast("dict[str, Any]", given)
    wrong = sorted(
        field
        for field, size in sizes.items()
        if type(size) is not (kind := OWN_SIZES.get(field)) or (kind is not bool and not 0 < size < float("inf"))
    )
    missing = [field for field in SIZES if field not in sizes]
    if wrong or missing:
        raise ModelError(
            f"Expected in the config's {BACKBONE!r} positive sizes of {', '.join(OWN_SIZES)}; wrong or unknown: "
            f"{_listed(wrong)}; missing: {_listed(missing)}."
        )
    return {"family": backbone, **sizes}


def _limits(value: Mapping[str, Any], layers: int) -> dict[str, int]:
    """Return the layers of either stage of a published config, which may have fewer than its backbone."""
    both = {
        field: layers if value.get(field) is None else _size(value, field)
        for field in ("limit_layers", "limit_layers_first_stage")
    }
    if max(both.values()) > layers:
        raise ModelError(f"Expected at most the {layers} layers of the backbone, found {both}.")
    second, first = both.values()
    return {"layers": second, **({"first_stage_layers": first} if first != second else {})}


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


def read_tensors(
    folder: Path, files: Iterable[Path], framework: str = "pt", wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Read tensors of a model's files.

    Args:
        folder: Folder of the model.
        files: Its files of weights.
        framework: "pt" for tensors of torch, "np" for arrays.
        wanted: Chooses tensors by their names.

    Raises:
        MissingExtraError: Arrays of bfloat16, and `onnx` is not installed.
        ModelError: A file is truncated or no safetensors, or its tensors are not those of the index.
    """
    tensors: dict[str, Any] = {}
    index = None if (folder / WEIGHTS).is_file() else read_index(folder / INDEX)
    for path in files:
        try:
            opened: Any = safe_open(path, framework=framework)
            with opened as file:
                names: set[str] = set(file.keys())
                for name in filter(wanted, names):
                    if framework == "np" and file.get_slice(name).get_dtype() == "BF16":
                        require("ml_dtypes", "onnx")  # which NumPy knows the dtype from
                    tensors[name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: expected safetensors, found: {error}. Download it again.") from error
        if index is not None and names != {name for name, shard in index.items() if shard == path.name}:
            raise ModelError(f"{path} does not hold the tensors that {INDEX} says. Download the model again.")
    return tensors


CONVERTED = "cde_rag"  # field of a config.json that `convert` adds
FORMAT = 1  # version of that field
PREFIX_END = ": "  # last characters of every prefix


@dataclass(frozen=True)
class PublishedFiles:
    """Files of a model, all checked except for the values of the weights.

    Attributes:
        folder: Folder of the model.
        value: Content of config.json.
        config: Config of the model that results from it.
        weights: Files of tensors.
        tokenizer_path: tokenizer.json of the model, or of its backbone.
        tokenizer: Tokenizer of both stages, from that file alone.
        digests: sha256 of each file of weights.
    """

    folder: Path
    value: dict[str, Any]
    config: TwoWayConfig
    weights: list[Path]
    tokenizer_path: Path
    tokenizer: TextTokenizer
    digests: list[str]

    @classmethod
    def find(cls, folder: Path, name: ModelName) -> "PublishedFiles":
        """Find the files of a model.

        Args:
            folder: Folder with config.json, model.safetensors (or its shards and their index) and, mostly,
                tokenizer.json.
            name: Name of the model, with the options of its reading.

        Raises:
            ModelError: A file is missing, too large, pickled, or another one than `convert` wrote, or the tokenizer
                does not fit the weights.
        """
        value = read_json(folder / CONFIG)
        converted = _converted(folder, value)
        config = read_config(value, name)
        weights = weight_files(folder)
        tokenizer = folder / TOKENIZER
        if not tokenizer.is_file():
            tokenizer = hub.fetch_tokenizer(TOKENIZERS[config.family], wanted_by=name.base)
        check_size(str(tokenizer), TOKENIZER, tokenizer.stat().st_size)
        digests = {path.name: file_sha256(path) for path in weights}
        found = digests | {TOKENIZER: file_sha256(tokenizer)}
        if converted and found.keys() - converted.keys():
            raise ModelError(
                f"{folder}: {CONFIG} expects {', '.join(converted)}, found {', '.join(found)}. Convert the model again."
            )
        for each in found.keys() & converted.keys():
            if found[each] != (expected := converted[each]):
                raise ModelError(
                    f"{folder / each}: {CONFIG} expects sha256 {expected[:16]}…, found {found[each][:16]}…. The file "
                    "is damaged or of another model; convert the model again."
                )
        return cls(folder, value, config, weights, tokenizer, _tokenizer(tokenizer, config), list(digests.values()))

    @property
    def digest(self) -> str:
        """Digest of config and weights."""
        return hashlib.sha256(json.dumps([self.config.sizes(), self.digests], sort_keys=True).encode()).hexdigest()

    def arrays(self, wanted: Callable[[str], bool]) -> dict[str, Float32[np.ndarray, "..."]]:
        """Read tensors as arrays, by their published names.

        Args:
            wanted: Chooses tensors by their names.

        Raises:
            MissingExtraError: They are bfloat16, and `onnx` is not installed.
            ModelError: The tensors are not those of the config, or not finite.
        """
        found = read_tensors(self.folder, self.weights, "np", lambda name: wanted(name) and name not in UNUSED)
        expected = {name: shape for name, shape in layout(self.config).items() if wanted(name)}
        check_tensors({name: array.shape for name, array in found.items()}, expected)
        arrays = {name: np.asarray(found[name], dtype=np.float32) for name in expected}
        check_finite(self.folder, (name for name, array in arrays.items() if not np.isfinite(array).all()))
        return arrays


def check_finite(folder: Path, others: Iterable[str]) -> None:
    """Refuse weights that are no finite numbers.

    Args:
        folder: Folder of the model.
        others: Names of weights with NaN or infinity.

    Raises:
        ModelError: There are such weights.
    """
    if names := list(others):
        raise ModelError(
            f"{folder}: expected weights that are finite numbers, found NaN or infinity in {', '.join(names[:3])}. Get "
            "the files again, or from their author."
        )


def _converted(folder: Path, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the digests that `convert` wrote; none for a folder as it was published."""
    if CONVERTED not in value:
        return {}
    added: Any = value[CONVERTED]
    try:
        digests, found = dict[str, str](added["sha256"]), added["format"]
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder / CONFIG}: expected digests in {CONVERTED!r}. Convert the model again.") from error
    if found != FORMAT:
        raise ModelError(
            f"{folder / CONFIG}: expected {CONVERTED!r} of format {FORMAT}, found {found!r}. Update cde-rag, or "
            "convert the model again."
        )
    return digests


def _tokenizer(path: Path, config: TwoWayConfig) -> TextTokenizer:
    try:
        tokenizer = TextTokenizer(read_file(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"Expected a tokenizer at {path}, found: {error}.") from error
    if tokenizer.size > config.vocab_size or tokenizer.special_tokens != 2:
        raise ModelError(
            f"{path}: expected a tokenizer of at most {config.vocab_size} word pieces that adds 2 special tokens, "
            f"found {tokenizer.size} and {tokenizer.special_tokens}. It is of another model."
        )
    return tokenizer
