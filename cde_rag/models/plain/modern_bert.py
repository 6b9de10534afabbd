"""ModernBERT: sizes, weights and the part of a graph that computes its token states.

Source: Warner et al. 2024: rotary positions, gated feed-forward layers, local and global attention, and no biases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from cde_rag.models.one_way.graph import Graph, State
from cde_rag.models.plain.bert import UNUSED
from cde_rag.models.plain.settings import OtherArchitectureError, check_settings, read_sizes
from cde_rag.models.two_way.config import MODERN_BERT
from cde_rag.models.two_way.graph import RotaryEncoder

_SIZES: Final = {  # theirs, ours; with ModernBertConfig's defaults
    "vocab_size": ("vocab_size", 50368),
    "hidden_size": ("dim", 768),
    "intermediate_size": ("intermediate", 1152),
    "num_hidden_layers": ("layers", 22),
    "num_attention_heads": ("heads", 12),
    "max_position_embeddings": ("max_positions", 8192),
    "local_attention": ("window", 128),
}
_UNUSED: Final = dict.fromkeys(
    (
        "attention_dropout classifier_activation classifier_bias classifier_pooling decoder_bias "
        "deterministic_flash_attn embedding_dropout initializer_cutoff_factor layer_norm_eps mlp_dropout "
        "position_embedding_type reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction"
    ).split()
)
_READ: Final = ("norm_eps", "layer_types", "global_attn_every_n_layers", "rope_parameters", *_SIZES)
_THETAS: Final = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


@dataclass(frozen=True, kw_only=True)
class ModernEncoder:
    """A ModernBERT encoder; see `RotarySizes` for its sizes.

    Attributes:
        name: Name of the model.
        vocab_size: Number of word embeddings.
        intermediate: Hidden units of a feed-forward layer.
        max_positions: Tokens that it was made for.
        max_length: Maximum tokens of a text.
        kinds: Of each layer, "full_attention" or "sliding_attention".
        thetas: Bases of the rotary angles of both kinds.
    """

    name: str
    vocab_size: int
    dim: int
    intermediate: int
    layers: int
    heads: int
    max_positions: int
    max_length: int
    window: int
    norm_eps: float
    kinds: tuple[str, ...]
    thetas: Mapping[str, float]
    words: ClassVar[str] = "embeddings.tok_embeddings.weight"
    prefixes: ClassVar[tuple[str, ...]] = ("", "model.")

    @classmethod
    def read(cls, value: Mapping[str, Any], *, name: str, max_length: int | None, limit: float) -> "ModernEncoder":
        """Read the sizes; arguments and errors as of `BertEncoder.read`."""
        off = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), False)
        thetas = dict.fromkeys(key for key, _ in _THETAS.values())
        known = {**UNUSED, **_UNUSED, **dict.fromkeys(_READ), **thetas, **off, "hidden_activation": "gelu"}
        check_settings("config.json", value, known=known)
        sizes = read_sizes(value, _SIZES)
        layers, every = sizes["layers"], int(value.get("global_attn_every_n_layers", 3))
        kinds = value.get("layer_types") or [
            "sliding_attention" if layer % every else "full_attention" for layer in range(layers)
        ]
        if len(kinds) != layers or set(kinds) - set(_THETAS):
            raise OtherArchitectureError(f"layer_types {kinds!r:.80} in config.json")
        if sizes["dim"] % (2 * sizes["heads"]):
            raise OtherArchitectureError(f"sizes that do not fit ({sizes['dim']} for {sizes['heads']} heads)")
        return cls(
            name=name,
            max_length=int(min(limit, sizes["max_positions"])) if max_length is None else max_length,
            norm_eps=float(value.get("norm_eps", 1e-5)),
            kinds=tuple(kinds),
            thetas={kind: _theta(value, kind) for kind in _THETAS},
            **sizes,
        )

    @property
    def family(self) -> str:
        """Architecture."""
        return MODERN_BERT

    @property
    def is_modern(self) -> bool:
        """True: it is ModernBERT."""
        return True

    @property
    def by_head(self) -> bool:
        """False: tokens are rotated by their positions."""
        return False

    @property
    def sizes(self) -> "ModernEncoder":
        """Itself."""
        return self

    @property
    def head_dim(self) -> int:
        """Length of a head's keys and values."""
        return self.dim // self.heads

    def is_local(self, layer: int) -> bool:
        """Return True if a layer lets a token attend to its neighbours alone, half a window on each side."""
        return self.kinds[layer] == "sliding_attention"

    def theta_of(self, layer: int) -> float:
        """Return the base of a layer's rotary angles."""
        return self.thetas[self.kinds[layer]]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the weights by their names, with their shapes."""
        dim, wide = self.dim, self.intermediate
        shapes: dict[str, tuple[int, ...]] = {
            self.words: (self.vocab_size, dim),
            "embeddings.norm.weight": (dim,),
            "final_norm.weight": (dim,),
        }
        for layer in range(self.layers):
            shapes |= {
                f"layers.{layer}.{name}.weight": shape
                for name, shape in {
                    "attn.Wqkv": (3 * dim, dim),
                    "attn.Wo": (dim, dim),
                    "mlp_norm": (dim,),
                    "mlp.Wi": (2 * wide, dim),
                    "mlp.Wo": (dim, wide),
                    **({"attn_norm": (dim,)} if layer else {}),
                }.items()
            }
        return shapes

    def add(self, graph: Graph, stored: State, words: str, mask: str) -> str:
        """Add the encoder to a graph; see `BertEncoder.add`."""
        encoder = RotaryEncoder(graph, self, stored, np.arange(max(self.max_length, self.max_positions)))
        return encoder.run(encoder.normed(words), graph.text_bias(mask))


def _theta(value: Mapping[str, Any], kind: str) -> float:
    """Return the base of the rotary angles of a kind of layers, as files of all versions name it."""
    name, usual = _THETAS[kind]
    both: Mapping[str, Any] = value.get("rope_parameters") or {}
    check_settings("config.json", both, known=dict.fromkeys(_THETAS))
    given: Mapping[str, Any] = both.get(kind) or {}
    check_settings("config.json", given, known={"rope_type": "default", "rope_theta": None})
    return float(given.get("rope_theta", value.get(name, usual)))
