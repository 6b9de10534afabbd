"""BERT encoders of sentence-transformers, read from their files without torch: sizes, pooling, tokenizer and weights.

Every setting that could change a vector is checked: what is not known here is another architecture, which
sentence-transformers itself runs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open  # pyright: ignore[reportUnknownVariableType]

from cde_rag.errors import ModelError
from cde_rag.models.files.stored_tensors import float_state
from cde_rag.models.files.weights import weight_files
from cde_rag.models.files.word_embeddings import WordEmbeddings
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.graph import plain_graph
from cde_rag.models.plain.checkpoint import MODULES, ModelFiles
from cde_rag.models.plain.text_model import OtherArchitectureError, check_settings
from cde_rag.models.plain.tokenizer import read_tokenizer
from cde_rag.models.tokenizer import TextTokenizer

State = dict[str, Float32[np.ndarray, "..."]]

SETTINGS: Final = "config_sentence_transformers.json"
TRANSFORMER: Final = "sentence_bert_config.json"
_PROMPTS: Final = {"query": "", "document": ""}  # of a model that has none
_FORWARD: Final = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_POOLINGS: Final = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
_LAYER: Final = {  # names of a layer's parts: theirs, ours
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "output_norm",
}
_KINDS: Final = ("weight", "bias")
_FLOATS: Final = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class BertEncoder:
    """A SentenceTransformer of a BERT encoder, mean or CLS pooling, and perhaps a normalisation.

    Attributes:
        files: Files of the model.
        config: Sizes of the encoder; its max_length is the model's own.
        pooling: "mean" or "cls".
        prompts: The model's own prompts, by name.
        tokenizer: Tokenizer, with the token ids of sentence-transformers.
        weights: Paths of the files of weights.
        prefix: Start of the names of weights, such as "bert.".
    """

    files: ModelFiles
    config: ModelConfig
    pooling: str
    prompts: Mapping[str, str]
    tokenizer: TextTokenizer
    weights: tuple[str, ...]
    prefix: str

    @classmethod
    def read(cls, files: ModelFiles) -> "BertEncoder":
        """Read a model, but for its weights.

        Raises:
            ModelError: A file was written meanwhile.
            OtherArchitectureError: It is none; with what was found.
        """
        try:
            return cls._read(files)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise OtherArchitectureError(f"files of another form ({error!r:.80})") from error

    @classmethod
    def _read(cls, files: ModelFiles) -> "BertEncoder":
        folder, pooling = _modules(files)
        settings = _json(files, SETTINGS) if SETTINGS in files.digests else {}
        check_settings(
            SETTINGS,
            settings,
            known={
                "__version__": None,
                "prompts": None,
                "default_prompt_name": None,
                "similarity_fn_name": None,
                "model_type": "SentenceTransformer",
            },
        )
        own: dict[str, str | None] = settings.get("prompts") or {}
        prompts = {name: prompt or "" for name, prompt in (_PROMPTS | own).items()}
        tokenizer, length = read_tokenizer(partial(_json, files), files.digests, folder)
        config = _config(_json(files, f"{folder}config.json"), files, folder, length)
        if tokenizer.size > config.vocab_size:
            raise OtherArchitectureError(f"{tokenizer.size} tokens for {config.vocab_size} word embeddings")
        weights = tuple(path.relative_to(files.folder).as_posix() for path in weight_files(files.folder / folder))
        types = _json(files, f"{folder}config.json").get("type_vocab_size", 2)
        prefix = _prefix(files, weights, config, types)
        return cls(files, config, _pooling(files, pooling, config.dim), prompts, tokenizer, weights, prefix)

    def graph(self) -> bytes:
        """Build the ONNX graph.

        Raises:
            MissingExtraError: `onnx` is not installed.
            ModelError: The weights were written meanwhile, or hold NaN or infinity.
        """
        return plain_graph(self.config, self.state(), self.pooling)

    def word_embeddings(self) -> WordEmbeddings:
        """Map the word embeddings into memory.

        Raises:
            ModelError: The file was removed.
        """
        paths = [self.files.folder / path for path in self.weights]
        return WordEmbeddings(paths, f"{self.prefix}embeddings.word_embeddings.weight")

    def state(self) -> State:
        """Read the weights, by the names of a pair's second half.

        Raises:
            ModelError: They were written meanwhile, or hold NaN or infinity.
        """
        wanted, bert = set(_shapes(self.config, 1)), State()
        for path in self.weights:
            found = float_state(self.files.content(path), lambda name: name.removeprefix(self.prefix) in wanted)
            bert |= {name.removeprefix(self.prefix): value for name, value in found.items()}
        position = bert["embeddings.position_embeddings.weight"]
        state = {
            "embeddings.word.weight": bert["embeddings.word_embeddings.weight"],
            "embeddings.position.weight": position + bert["embeddings.token_type_embeddings.weight"][0],
        }
        for kind in _KINDS:
            state[f"embeddings.norm.{kind}"] = bert[f"embeddings.LayerNorm.{kind}"]
        for layer in range(self.config.layers):
            theirs, ours = f"encoder.layer.{layer}.", f"layers.{layer}."
            for kind in _KINDS:
                parts = [bert[f"{theirs}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
                state[f"{ours}query_key_value.{kind}"] = np.concatenate(parts)
                state |= {f"{ours}{to}.{kind}": bert[f"{theirs}{name}.{kind}"] for name, to in _LAYER.items()}
        return state


def _json(files: ModelFiles, path: str) -> dict[str, Any]:
    """Read a JSON object among the files; empty if there is none."""
    value: Any = json.loads(files.content(path)) if path in files.digests else {}
    if not isinstance(value, dict):
        raise OtherArchitectureError(f"no JSON object in {path}")
    return cast("dict[str, Any]", value)


def _modules(files: ModelFiles) -> tuple[str, str]:
    """Return the folders of encoder and pooling, each with its slash."""
    modules = json.loads(files.content(MODULES))
    kinds = [str(module["type"]) for module in modules]
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise OtherArchitectureError(f"the modules {', '.join(names)}")
    if any(module.get("kwargs") for module in modules):
        raise OtherArchitectureError("modules with arguments of their own")
    encoder, pooling = (f"{module['path']}/" if module["path"] else "" for module in modules[:2])
    return encoder, pooling


def _pooling(files: ModelFiles, folder: str, dim: int) -> str:
    path = f"{folder}config.json"
    value = _json(files, path)
    sizes = {"embedding_dimension": dim, "word_embedding_dimension": dim, "include_prompt": True}
    check_settings(path, value, known={**sizes, "pooling_mode": None, **dict.fromkeys(_POOLINGS.values())})
    flags = [mode for mode, flag in _POOLINGS.items() if value.get(flag)]
    found: Any = value.get("pooling_mode", flags or "mean")
    modes = cast("list[Any]", found) if isinstance(found, list) else [found]
    mode: Any = modes[0] if len(modes) == 1 else modes
    if str(mode) not in _POOLINGS or not {"embedding_dimension", "word_embedding_dimension"} & set(value):
        raise OtherArchitectureError(f"the pooling {mode!r}")
    return str(mode)


def _config(value: Mapping[str, Any], files: ModelFiles, folder: str, length: float) -> ModelConfig:
    """Return the sizes of an encoder.

    Args:
        value: Its config.json.
        files: Files of the model.
        folder: Folder of the encoder, with its slash.
        length: Maximum tokens by its tokenizer's files.
    """
    if value.get("model_type") != "bert":
        raise OtherArchitectureError(f"the architecture {value.get('model_type')!r}")
    usual = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    for name, expected in usual.items():
        if value.get(name, expected) != expected:
            raise OtherArchitectureError(f"{name} {value[name]!r}")
    for name in ("is_decoder", "add_cross_attention", "auto_map", "quantization_config", "pruned_heads"):
        if value.get(name):
            raise OtherArchitectureError(f"{name} in config.json")
    path = f"{folder}{TRANSFORMER}"
    if others := [name for name in files.digests if _of_transformer(name) and name != path]:
        raise OtherArchitectureError(", ".join(others))
    transformer = _json(files, path)
    check_settings(
        path,
        transformer,
        known={
            "max_seq_length": None,
            "transformer_task": "feature-extraction",
            "modality_config": _FORWARD,
            "module_output_name": "token_embeddings",
            "unpad_inputs": None,
        },
    )
    own = transformer.get("max_seq_length")
    try:
        sizes: dict[str, Any] = {
            "vocab_size": int(value.get("vocab_size", 30522)),
            "dim": int(value.get("hidden_size", 768)),
            "layers": int(value.get("num_hidden_layers", 12)),
            "heads": int(value.get("num_attention_heads", 12)),
            "intermediate": int(value.get("intermediate_size", 3072)),
            "max_positions": int(value.get("max_position_embeddings", 512)),
        }
        max_length = int(min(length, sizes["max_positions"]) if own is None else own)
        return ModelConfig(
            name=files.name,
            max_length=max_length,
            norm_eps=float(value.get("layer_norm_eps", 1e-12)),
            context_layers=sizes["layers"],
            first_stage_layers=0,
            first_stage_max_length=max_length,
            **sizes,
        )
    except ModelError as error:
        raise OtherArchitectureError(f"sizes that do not fit ({error})") from error


def _of_transformer(path: str) -> bool:
    """Return True if a file has settings of a Transformer module, or of a processor of other than text."""
    name = path.rpartition("/")[2]
    return (name.startswith("sentence_") or name.endswith("processor_config.json")) and name.endswith("_config.json")


def _prefix(files: ModelFiles, weights: tuple[str, ...], config: ModelConfig, types: int) -> str:
    """Return the start of the names of weights, whose shapes are checked."""
    found = dict(shape for path in weights for shape in _stored_shapes(files, path))
    for prefix in ("", "bert."):
        expected = {prefix + name: shape for name, shape in _shapes(config, types).items()}
        if all(found.get(name) == shape for name, shape in expected.items()):
            return prefix
    raise OtherArchitectureError("weights with other names, shapes or dtypes than BERT's")


def _stored_shapes(files: ModelFiles, path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the floats in a file of weights, by its header."""
    try:
        with cast(Any, safe_open)(files.folder / path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                if (part := file.get_slice(name)).get_dtype() in _FLOATS:
                    yield name, tuple(part.get_shape())
    except (OSError, SafetensorError) as error:
        raise OtherArchitectureError(f"{path}, which is no safetensors ({error})") from error


def _shapes(config: ModelConfig, types: int) -> dict[str, tuple[int, ...]]:
    """Return the weights of a BERT encoder, by their names, with their shapes."""
    dim, wide = config.dim, config.intermediate
    matrices = {
        "attention.self.query": (dim, dim),
        "attention.self.key": (dim, dim),
        "attention.self.value": (dim, dim),
        "attention.output.dense": (dim, dim),
        "attention.output.LayerNorm": (dim,),
        "intermediate.dense": (wide, dim),
        "output.dense": (dim, wide),
        "output.LayerNorm": (dim,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, dim),
        "embeddings.position_embeddings.weight": (config.max_positions, dim),
        "embeddings.token_type_embeddings.weight": (types, dim),
        "embeddings.LayerNorm.weight": (dim,),
        "embeddings.LayerNorm.bias": (dim,),
    }
    for layer in range(config.layers):
        for name, shape in matrices.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
    return shapes
