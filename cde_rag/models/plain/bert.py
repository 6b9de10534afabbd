"""BERT, RoBERTa and XLM-RoBERTa: sizes, weights and the part of a graph that computes their token states.

Source: Devlin et al. 2018; Liu et al. 2019; Conneau et al. 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import ModelError
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.graph import Graph, State, encoded
from cde_rag.models.plain.settings import OtherArchitectureError, check_settings, read_sizes

POSITIONS: Final = "embeddings.position_embeddings.weight"
UNUSED: Final = dict.fromkeys(  # settings of transformers that change no vector
    (
        "_name_or_path architectures attention_probs_dropout_prob bos_token_id classifier_dropout cls_token_id "
        "directionality dtype eos_token_id finetuning_task gradient_checkpointing hidden_dropout_prob id2label "
        "initializer_range label2id matryoshka_dimensions model_type num_labels output_past pad_token_id "
        "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type problem_type "
        "sentence_transformers sep_token_id tie_word_embeddings tokenizer_class torch_dtype transformers_version "
        "use_cache"
    ).split()
)
_SIZES: Final = {  # theirs, ours; with BertConfig's defaults
    "vocab_size": ("vocab_size", 30522),
    "hidden_size": ("dim", 768),
    "num_hidden_layers": ("layers", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("intermediate", 3072),
    "max_position_embeddings": ("max_positions", 512),
}
_LAYER: Final = {  # names of a layer's parts: theirs, ours
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "output_norm",
}
_KINDS: Final = ("weight", "bias")


@dataclass(frozen=True)
class BertEncoder:
    """A BERT encoder, or one of its kind with other positions.

    Attributes:
        sizes: Sizes; `max_positions` is the number of tokens that have a position.
        first: Position of the first token: 0, or of RoBERTa one more than the id of padding.
        types: Number of token types, of which all tokens have the first.
        prefixes: Starts that the names of weights may have.
    """

    sizes: ModelConfig
    first: int
    types: int
    prefixes: tuple[str, ...]
    words = "embeddings.word_embeddings.weight"

    @classmethod
    def read(cls, value: Mapping[str, Any], *, name: str, max_length: int | None, limit: float) -> "BertEncoder":
        """Read the sizes.

        Args:
            value: Content of config.json.
            name: Name of the model.
            max_length: Maximum tokens of a text, if its module names them.
            limit: Maximum tokens by its tokenizer's files.

        Raises:
            OtherArchitectureError: A setting is not known, or sizes do not fit.
        """
        roberta = value["model_type"] != "bert"
        known = {"hidden_act": "gelu", "position_embedding_type": "absolute", "layer_norm_eps": None}
        check_settings(
            "config.json", value, known={**UNUSED, **dict.fromkeys(_SIZES), **known, "type_vocab_size": None}
        )
        sizes: dict[str, Any] = dict(read_sizes(value, _SIZES))
        own = int(min(limit, sizes["max_positions"])) if max_length is None else max_length
        first = int(value.get("pad_token_id", 1)) + 1 if roberta else 0
        sizes["max_positions"] -= first
        try:
            config = ModelConfig(
                name=name,
                max_length=own,
                norm_eps=float(value.get("layer_norm_eps", 1e-12)),
                context_layers=sizes["layers"],
                first_stage_layers=0,
                first_stage_max_length=own,
                **sizes,
            )
        except ModelError as error:
            raise OtherArchitectureError(f"sizes that do not fit ({error})") from error
        return cls(config, first, int(value.get("type_vocab_size", 2)), ("", "roberta." if roberta else "bert."))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the weights by their names, with their shapes."""
        config = self.sizes
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
            self.words: (config.vocab_size, dim),
            POSITIONS: (config.max_positions + self.first, dim),
            "embeddings.token_type_embeddings.weight": (self.types, dim),
            "embeddings.LayerNorm.weight": (dim,),
            "embeddings.LayerNorm.bias": (dim,),
        }
        for layer in range(config.layers):
            for name, shape in matrices.items():
                start = f"encoder.layer.{layer}.{name}"
                shapes |= {f"{start}.weight": shape, f"{start}.bias": shape[:1]}
        return shapes

    def add(self, graph: Graph, stored: State, words: str, mask: str) -> str:
        """Add the encoder to a graph; returns the states of the tokens.

        Args:
            graph: The graph.
            stored: Weights by their stored names, float32.
            words: Word embeddings of the tokens.
            mask: 1.0 where there is a token.
        """
        return encoded(graph, self.sizes, self._state(stored), words, mask)

    def usual_places(self, tokens: int) -> Int64[np.ndarray, "1 tokens"]:
        """Return the position of each token of a text without a token of padding, among all position embeddings."""
        return np.arange(self.first, self.first + tokens)[None]

    def places(self, ids: Int64[np.ndarray, "batch tokens"]) -> Int64[np.ndarray, "batch tokens"]:
        """Return the position of each token among all position embeddings, as RoBERTa counts them.

        A text may hold the token of padding: it has the position of padding, and later tokens stand one place earlier.
        """
        there = ids != self.first - 1
        return np.cumsum(there, axis=1) * there + self.first - 1

    def _state(self, stored: State) -> dict[str, Float32[np.ndarray, "..."]]:
        """Return the weights by the names of a pair's second half."""
        positions = stored[POSITIONS][self.first :]
        state = {"embeddings.position.weight": positions + stored["embeddings.token_type_embeddings.weight"][0]}
        for kind in _KINDS:
            state[f"embeddings.norm.{kind}"] = stored[f"embeddings.LayerNorm.{kind}"]
        for layer in range(self.sizes.layers):
            theirs, ours = f"encoder.layer.{layer}.", f"layers.{layer}."
            for kind in _KINDS:
                parts = [stored[f"{theirs}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
                state[f"{ours}query_key_value.{kind}"] = np.concatenate(parts)
                state |= {f"{ours}{to}.{kind}": stored[f"{theirs}{name}.{kind}"] for name, to in _LAYER.items()}
        return state
