"""Path of the context in NumPy: from vectors of a sample of the corpus to the input of a second-stage graph.

It runs once per Context, so it needs no graph. Equal to `context_path` and `SecondStage.prepare` up to rounding.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Int, Shaped

from cde_rag.models.one_way.config import ModelConfig

Array: TypeAlias = Shaped[np.ndarray, "..."]
State: TypeAlias = Mapping[str, Array]
PREFIXES = ("set_attention.", "output_map.", "second_stage.given.", "second_stage.gates", "rotation")
_NORM_EPS = 1e-5  # of torch's LayerNorm, where a config names none
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class ArrayContext:
    """Second-stage input from a Context, as arrays; attributes as those of `context_path.PreparedContext`."""

    keys: Float32[np.ndarray, "layers heads latents head_dim"]
    values: Float32[np.ndarray, "layers heads latents head_dim"]
    output_map: Float32[np.ndarray, "dim dim"]
    sibling_weight: Float32[np.ndarray, ""]


def is_of_context_path(name: str) -> bool:
    """Return True for the name of a weight that `prepare` needs, of a one-way model."""
    return name.startswith(PREFIXES)


def prepare(
    config: ModelConfig,
    state: State,
    context: Float32[np.ndarray, "context dim"],
    counts: Int[np.ndarray, " context"],
) -> ArrayContext:
    """Compute keys and values of a corpus for all context layers, its output map and its siblings' weight.

    Args:
        config: Sizes of the model.
        state: Weights of the path of the context, by the names of `TwoStage`.
        context: First-stage vectors of a sample of the corpus; no rows for the null context.
        counts: Number of equal documents that each row stands for.
    """
    latents = _latents(config, state, context, counts)
    pairs = [_keys_and_values(config, state, layer, latents) for layer in range(config.context_layers)]
    output_map = _output_map(state, context, counts)
    if config.rotated:
        output_map = output_map @ state["rotation"]
    weight = np.float32(_sibling_weight(context, counts, config.full_likeness))
    return ArrayContext(
        np.ascontiguousarray(np.stack([key for key, _ in pairs])),
        np.ascontiguousarray(np.stack([value for _, value in pairs])),
        np.ascontiguousarray(output_map, dtype=np.float32),
        np.asarray(weight),
    )


def _latents(config: ModelConfig, state: State, context: Array, counts: Array) -> Array:
    name = "set_attention."
    if len(context) == 0:
        return _norm(state[f"{name}null_latents"], state, f"{name}output_norm.")
    own = state[f"{name}latents"]
    query = _heads(_linear(_norm(own, state, f"{name}latent_norm."), state, f"{name}query."), config.heads)
    both = _linear(_norm(context, state, f"{name}context_norm."), state, f"{name}key_value.")
    key, value = (_heads(each, config.heads) for each in np.split(both, 2, axis=1))
    scores = query @ key.transpose(0, 2, 1) * np.float32(config.head_dim**-0.5) + np.log(counts.astype(np.float32))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    answer = (weights / weights.sum(axis=-1, keepdims=True)) @ value
    x = own + _linear(answer.transpose(1, 0, 2).reshape(len(own), -1), state, f"{name}output.")
    up = _linear(_norm(x, state, f"{name}feed_norm."), state, f"{name}up.")
    gelu = np.asarray(up * 0.5 * (1 + _erf(up / math.sqrt(2))), dtype=np.float32)
    return _norm(x + _linear(gelu, state, f"{name}down."), state, f"{name}output_norm.")


def _keys_and_values(config: ModelConfig, state: State, layer: int, latents: Array) -> tuple[Array, Array]:
    both = _linear(latents, state, f"second_stage.given.{layer}.")
    key, value = (_heads(each, config.heads) for each in np.split(both, 2, axis=1))
    return key, value * np.tanh(state["second_stage.gates"][layer])[:, None, None]


def _output_map(state: State, context: Array, counts: Array) -> Array:
    if len(context) == 0:
        return np.eye(context.shape[1], dtype=np.float32)
    rows, weights = context.astype(np.float64), (counts / counts.sum()).astype(np.float64)
    values, vectors = np.linalg.eigh((rows * weights[:, None]).T @ rows)
    relative = np.clip(values, 0, None) / values.mean()
    shift, exponent = math.exp(state["output_map.log_shift"]), float(state["output_map.exponent"])
    return ((vectors * ((relative + shift) / (1 + shift)) ** -exponent) @ vectors.T).astype(np.float32)


def _sibling_weight(context: Array, counts: Array, full_likeness: float) -> float:
    if full_likeness == 0:
        return 1.0
    if len(context) < 2:
        return 0.5
    weights = counts.astype(np.float64)
    rows = context.astype(np.float64) * weights[:, None]
    pairs = weights.sum() ** 2 - (weights**2).sum()
    likeness = ((rows.sum(axis=0) ** 2).sum() - (rows**2).sum()) / pairs
    return min(max(float(likeness) / full_likeness, 0.0), 1.0)


def _linear(x: Array, state: State, name: str) -> Array:
    return x @ state[f"{name}weight"].T + state[f"{name}bias"]


def _norm(x: Array, state: State, name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(_NORM_EPS))
    return centred / scale * state[f"{name}weight"] + state[f"{name}bias"]


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)
