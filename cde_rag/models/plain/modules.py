"""Modules of a sentence-transformers model, read from its files without torch, in the order of a text through them.

Every setting that could change a vector is checked; what is not known here, sentence-transformers itself runs.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.models.files.stored_tensors import float_state
from cde_rag.models.files.weights import MODULES, WEIGHTS
from cde_rag.models.plain.checkpoint import ROUTER, ModelFiles
from cde_rag.models.plain.settings import OtherArchitectureError, check_settings, json_object, stored_shapes

ROLES: Final = ("document", "query")
TOKENS: Final = "token_embeddings"  # what modules before the pooling change
TEXT_VECTOR: Final = "sentence_embedding"  # what those after it change
_FLAGS: Final = {  # of older files, in the order in which their vectors are joined
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_ACTIVATIONS: Final = {  # torch's classes, ONNX operations
    "torch.nn.modules.linear.Identity": "Identity",
    "torch.nn.modules.activation.Tanh": "Tanh",
}
_LINEAR: Final = ("linear.weight", "linear.bias")


@dataclass(frozen=True)
class Module:
    """A module as its model's files name it.

    Attributes:
        kind: Name of its class, such as "Pooling".
        folder: Its folder below that of the model, with its slash; empty for the model's own.
    """

    kind: str
    folder: str


@dataclass(frozen=True, eq=False)
class WordWeights:
    """A weight for each token id, by which token states are multiplied.

    Attributes:
        weights: Weight of each token id.
    """

    weights: Float32[np.ndarray, " vocabulary"]

    def of(self, ids: Int64[np.ndarray, "batch tokens"]) -> Float32[np.ndarray, "batch tokens"]:
        """Return the weights of tokens."""
        return self.weights[ids]


@dataclass(frozen=True)
class Pooling:
    """Token states to one vector; those of several modes are joined.

    Attributes:
        modes: Modes, as sentence-transformers names them.
    """

    modes: tuple[str, ...]


@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation.

    Attributes:
        folder: Folder of its weights, with its slash.
        outputs: Length of its output.
        has_bias: True if it adds a bias.
        activation: Name of an ONNX operation.
    """

    folder: str
    outputs: int
    has_bias: bool
    activation: str


@dataclass(frozen=True)
class Normalize:
    """A division by the norm."""


Step: TypeAlias = WordWeights | Pooling | Dense | Normalize


@dataclass(frozen=True)
class Head:
    """Work that follows an encoder or a table: its modules, in order.

    Attributes:
        files: Files of the model.
        steps: The modules.
        dim: Length of a vector after the last one.
    """

    files: ModelFiles
    steps: tuple[Step, ...]
    dim: int

    @classmethod
    def read(cls, files: ModelFiles, modules: Sequence[Module], *, dim: int, pooled: bool) -> "Head":
        """Read the modules after the first one, but for weights.

        Args:
            files: Files of the model.
            modules: The modules.
            dim: Length of the states, or vectors, that they are given.
            pooled: True if they are given one vector for each text, as of a table.

        Raises:
            OtherArchitectureError: A module or one of its settings is not known, or modules have another order.
        """
        steps: list[Step] = []
        for module in modules:
            if (reader := _READERS.get(module.kind)) is None or (pooled and module.kind in _BEFORE):
                raise OtherArchitectureError(f"the module {module.kind} at {module.folder or 'its place'}")
            step, dim = reader(files, module.folder, dim, TEXT_VECTOR if pooled else TOKENS)
            pooled = pooled or isinstance(step, Pooling)
            steps.append(step)
        if not pooled:
            raise OtherArchitectureError("modules without a pooling")
        return cls(files, tuple(steps), dim)

    @property
    def word_weights(self) -> WordWeights | None:
        """Weights of tokens; None if all count the same."""
        return next((step for step in self.steps if isinstance(step, WordWeights)), None)

    def linear(
        self, dense: Dense
    ) -> tuple[Float32[np.ndarray, "outputs inputs"], Float32[np.ndarray, " outputs"] | None]:
        """Read the weight and the bias of a linear layer.

        Raises:
            ModelError: They were written meanwhile, or hold NaN or infinity.
        """
        state = float_state(self.files.content(dense.folder + WEIGHTS))
        return state[_LINEAR[0]], state.get(_LINEAR[1])


def read_modules(files: ModelFiles, role: str) -> list[Module]:
    """Return the modules that the texts of a role go through, in order, those inside a router included.

    Args:
        files: Files of the model.
        role: "query" or "document".

    Raises:
        ModelError: A file was written meanwhile.
        OtherArchitectureError: Modules have code or arguments of their own, or a router knows no way for the role.
    """
    given = json.loads(files.content(MODULES))
    if any(module.get("kwargs") for module in given):
        raise OtherArchitectureError("modules with arguments of their own")
    if len({str(module.get("name", place)) for place, module in enumerate(given)}) < len(given):
        raise OtherArchitectureError("modules of one name, of which the last one counts")
    found = [_module(str(module["type"]), str(module["path"])) for module in given]
    if found and found[0].kind == "Router":
        found[:1] = route(files, role)[1]
    if any(module.kind == "Router" for module in found):
        raise OtherArchitectureError("a router that is not the first module")
    return found


def route(files: ModelFiles, role: str) -> tuple[str, list[Module]]:
    """Return the name of a router's way for texts of a role, and its modules.

    Args:
        files: Files of the model, whose first module is the router.
        role: "query" or "document".

    Raises:
        ModelError: A file was written meanwhile.
        OtherArchitectureError: The router knows no way for the role, or has a setting that is not known.
    """
    folder = _module("", str(json.loads(files.content(MODULES))[0]["path"])).folder
    path = folder + ROUTER
    value = json_object(files, path)
    check_settings(path, value, known=dict.fromkeys(("types", "structure", "parameters")))
    parameters: dict[str, Any] = value.get("parameters") or {}
    check_settings(path, parameters, known=dict.fromkeys(("default_route", "allow_empty_key", "route_mappings")))
    ways: dict[str, list[str]] = value["structure"]
    written: dict[str, str] = parameters.get("route_mappings") or {}
    mappings: dict[Any, str] = {ast.literal_eval(key): name for key, name in written.items()}
    keys: list[tuple[str | None, str | None]] = [(role, "text"), (role, None), (None, "text"), (None, None)]
    names = [*(mappings.get(key) for key in keys), *(name for name in (role, "text") if name in ways)]
    name = next((name for name in names if name is not None), None)
    if name not in ways:
        raise OtherArchitectureError(f"no way of a {role} in {path}")
    return str(name), [_module(str(value["types"][each]), folder + each) for each in ways[str(name)]]


def _module(kind: str, path: str) -> Module:
    """Return a module by the name of its class, which keeps its package if that is not sentence-transformers."""
    name = kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind
    return Module(name, "" if path in ("", ".") else f"{path.removesuffix('/')}/")


def _pooling(files: ModelFiles, folder: str, dim: int, _: str) -> tuple[Pooling, int]:
    path = f"{folder}config.json"
    value = json_object(files, path)
    sizes = {"embedding_dimension": dim, "word_embedding_dimension": dim, "include_prompt": True}
    check_settings(path, value, known={**sizes, "pooling_mode": None, **dict.fromkeys(_FLAGS.values())})
    flags = [mode for mode, flag in _FLAGS.items() if value.get(flag)]
    found: Any = value.get("pooling_mode", flags or "mean")
    modes = tuple(cast("list[Any]", found) if isinstance(found, list) else [found])
    if not modes or set(modes) - set(_FLAGS) or not {"embedding_dimension", "word_embedding_dimension"} & set(value):
        raise OtherArchitectureError(f"the pooling {found!r} in {path}")
    return Pooling(tuple(map(str, modes))), len(modes) * dim


def _dense(files: ModelFiles, folder: str, dim: int, subject: str) -> tuple[Dense, int]:
    path = f"{folder}config.json"
    value = json_object(files, path)
    known = {"in_features": dim, "out_features": None, "bias": None, "activation_function": None}
    check_settings(path, value, known={**known, **_changes(subject), "use_residual": False})
    _check_subject(path, value, subject)
    activation = value.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise OtherArchitectureError(f"activation_function {activation!r} in {path}")
    outputs, bias = int(value["out_features"]), bool(value.get("bias", True))
    shapes: dict[str, tuple[int, ...]] = {_LINEAR[0]: (outputs, dim), **({_LINEAR[1]: (outputs,)} if bias else {})}
    if stored_shapes(files, folder + WEIGHTS) != shapes:
        raise OtherArchitectureError(f"weights with other names, shapes or dtypes than those of {path}")
    return Dense(folder, outputs, bias, _ACTIVATIONS[activation]), outputs


def _normalize(files: ModelFiles, folder: str, dim: int, subject: str) -> tuple[Normalize, int]:
    path = f"{folder}config.json"
    value = json_object(files, path) if folder else {}
    check_settings(path, value, known=_changes(subject))
    _check_subject(path, value, subject)
    return Normalize(), dim


def _word_weights(files: ModelFiles, folder: str, dim: int, _: str) -> tuple[WordWeights, int]:
    path = f"{folder}config.json"
    value = json_object(files, path)
    check_settings(path, value, known=dict.fromkeys(("vocab", "word_weights", "unknown_word_weight")))
    given, other = value["word_weights"], value.get("unknown_word_weight", 1)
    weights = [given.get(word, given.get(word.lower(), other)) for word in value["vocab"]]
    return WordWeights(np.array(weights, dtype=np.float32)), dim


def _changes(subject: str) -> dict[str, str]:
    return {"module_input_name": subject, "module_output_name": subject}


def _check_subject(path: str, value: Mapping[str, Any], subject: str) -> None:
    """Check that a module stands where its input is; by default it changes the vector of a text."""
    if value.get("module_input_name", TEXT_VECTOR) != subject:
        raise OtherArchitectureError(f"a module of the {TEXT_VECTOR} before the pooling ({path})")


_READERS: Final[Mapping[str, Callable[[ModelFiles, str, int, str], tuple[Step, int]]]] = {
    "WordWeights": _word_weights,
    "Pooling": _pooling,
    "Dense": _dense,
    "Normalize": _normalize,
}
_BEFORE: Final = ("WordWeights", "Pooling")  # what there is no more of once a text has one vector
