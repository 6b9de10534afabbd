"""Two-way model from a backbone that was only pre-trained: any NomicBERT, ModernBERT or BERT, of any size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.files.weights import CONFIG, read_json, weight_files
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import checkpoint
from cde_rag.models.two_way.config import BERT, EPS, LOCAL_THETA, MODERN_BERT, NOMIC_BERT, THETA, TwoWayConfig
from cde_rag.models.two_way.files import FIRST, PREFIX_END, SECOND, backbone_layout, read_tensors
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.config import CONTEXT_SIZE, MAX_LENGTH, StartConfig

WRAPPERS = ("model.", "bert.")  # what a backbone's keys begin with where it was saved inside another model
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # bert-base-uncased has them
SIZES = {  # field of `TwoWayConfig`: names in the configs of transformers, and in that of nomic-ai's own code
    "vocab_size": ("vocab_size",),
    "dim": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "intermediate": ("intermediate_size", "n_inner"),
    "max_positions": ("max_position_embeddings", "n_positions"),
}
COMPUTED = {  # settings that our layers compute, by family; where a config lacks one, it is so
    NOMIC_BERT: {
        "hidden_act": "silu",
        "activation_function": "swiglu",
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_scaling_factor": None,
        "use_rms_norm": False,
        "causal": False,
        "type_vocab_size": 2,
    },
    MODERN_BERT: {
        "hidden_activation": "gelu",
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    BERT: {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False, "type_vocab_size": 2},
}


def two_way_from_backbone(folder: Path, tokenizer: TextTokenizer, config: StartConfig, *, seed: int) -> TwoWay:
    """Build a two-way model from a backbone, whose weights both stages begin with; projections are random.

    Args:
        folder: Holds config.json and the backbone's tensors, under their published names.
        tokenizer: Tokenizer of the backbone.
        config: Name, depths, context_size, soft tokens and max_length.
        seed: Random seed of the projections.

    Raises:
        MissingExtraError: `transformers` is not installed, or too old.
        ModelError: The config lacks a size or has a setting that our layers do not compute, or the tensors are not
            those of the config.

    Source: paper §4.2 and §5; weights are not shared between the stages.
    """
    value = read_json(folder / CONFIG)
    sizes = backbone_sizes(value, where=str(folder / CONFIG))
    layers = sizes["layers"] if config.limit_layers is None else config.limit_layers
    first = layers if config.first_stage_layers is None else config.first_stage_layers
    if not 1 <= layers <= sizes["layers"] or not 1 <= first <= sizes["layers"]:
        raise ModelError(
            f"{folder}: expected limit_layers and first_stage_layers in 1 … {sizes['layers']}, the layers of the "
            f"backbone, found {layers} and {first}."
        )
    size = CONTEXT_SIZE if config.context_size is None else config.context_size
    names = ["soft_tokens", "tokens_per_document", *(["context_positions"] if sizes["family"] == MODERN_BERT else [])]
    asked = {name: getattr(config, name) for name in names}
    chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    model = TwoWayConfig(
        **{**sizes, "layers": layers, **chosen},
        first_stage_layers=None if first == layers else first,
        name=config.name,
        pooling="text_after_prefix" if sizes["family"] == MODERN_BERT else "text",
        trained_context_size=size,
        context_size=size,
        max_length=MAX_LENGTH if config.max_length is None else config.max_length,
        null_embedding=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TwoWay(model, prefix_end=tokenizer.first_id(PREFIX_END))
    tensors = backbone_tensors(folder)
    state = checkpoint.published_state(network.state_dict(), model)
    for place, stage in ((f"{FIRST}embedder.", model.of_first_stage), (f"{SECOND}backbone.", model)):
        names = backbone_layout(stage)
        if missing := sorted(names.keys() - tensors.keys()):
            raise ModelError(
                f"{folder}: expected the tensors of a {model.family} of {layers} layers, found no {missing[0]}. Is it "
                "the right config for these weights?"
            )
        state |= {f"{place}{name}": tensors[name] for name in names}
    network.load_state_dict(checkpoint.own_state(state, model))
    return network.eval()


def backbone_sizes(value: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Read family and sizes of a backbone from its own config.

    Args:
        value: Content of its config.json, of transformers or, for NomicBERT, of nomic-ai's own code.
        where: Name of the file in messages.

    Returns:
        Fields of `TwoWayConfig`; base of angles, epsilon and the like only where they are not the family's.

    Raises:
        ModelError: A size is missing, or a setting is one that our layers do not compute.
    """
    family = str(value["model_type"])
    for field, expected in COMPUTED[family].items():
        if value.get(field, expected) != expected:
            raise ModelError(f"{where}: expected {field} {expected!r}, found {value[field]!r}. It cannot be trained.")
    sizes: dict[str, Any] = {"family": family}
    for field, names in SIZES.items():
        found = next((value[name] for name in names if value.get(name) is not None), None)
        if type(found) is not int:
            raise ModelError(f"{where}: expected the sizes of a {family}, found no number {' or '.join(names)}.")
        sizes[field] = found
    if family == MODERN_BERT:
        sizes |= {"window": value.get("local_attention", 128), "global_every": _global_every(value, where)}
    usual = {"theta": THETA[family], "local_theta": LOCAL_THETA, "eps": EPS[family]}
    found = {name: float(number) for name, number in _numbers(value, family).items() if number is not None}
    return sizes | {name: number for name, number in found.items() if number != usual[name]}


def _numbers(value: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the bases of the angles and the epsilon that a config gives; None for those that it leaves out."""
    rope: Mapping[str, Any] = value.get("rope_parameters") or {}
    if family == NOMIC_BERT:
        eps = value.get("layer_norm_eps", value.get("layer_norm_epsilon"))
        return {"theta": rope.get("rope_theta", value.get("rotary_emb_base")), "eps": eps}
    if family == BERT:
        return {"eps": value.get("layer_norm_eps")}
    wide, near = (rope.get(kind) or {} for kind in ("full_attention", "sliding_attention"))
    return {
        "theta": wide.get("rope_theta", value.get("global_rope_theta")),
        "local_theta": near.get("rope_theta", value.get("local_rope_theta")),
        "eps": value.get("norm_eps"),
    }


def _global_every(value: Mapping[str, Any], where: str) -> int:
    """Return after how many layers one is global; a config lists the layers, or gives the number."""
    kinds = value.get("layer_types")
    if kinds is None:
        return int(value.get("global_attn_every_n_layers", 3))
    places = [place for place, kind in enumerate(kinds) if kind == "full_attention"]
    every = places[1] if len(places) > 1 else len(kinds)
    if places != list(range(0, len(kinds), every)):
        raise ModelError(
            f"{where}: expected every so manieth layer to be global, found {places}. It cannot be trained."
        )
    return every


def backbone_tensors(folder: Path) -> dict[str, Tensor]:
    """Read a backbone's tensors in float32, under the names of its own class in transformers.

    Raises:
        ModelError: There are no safetensors, or damaged ones.
    """
    return {_unwrapped(name): tensor.float() for name, tensor in read_tensors(folder, weight_files(folder)).items()}


def _unwrapped(name: str) -> str:
    name = next((name.removeprefix(wrapper) for wrapper in WRAPPERS if name.startswith(wrapper)), name)
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name
