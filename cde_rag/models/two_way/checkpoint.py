"""Folders of two-way models: the published files unchanged and, after `convert`, with their digests."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from cde_rag._files import file_sha256
from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import CONFIG, INDEX, TOKENIZER, WEIGHTS
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import files
from cde_rag.models.two_way.config import NOMIC_BERT, TwoWayConfig
from cde_rag.models.two_way.files import (
    CONVERTED,
    FIRST,
    FORMAT,
    PREFIX_END,
    SECOND,
    PublishedFiles,
    check_finite,
    read_tensors,
)
from cde_rag.models.two_way.network import TwoWay


def read(files: PublishedFiles) -> tuple[TwoWay, TextTokenizer, str]:
    """Read a model of the published layout.

    Args:
        files: Its files.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        MissingExtraError: `transformers` is not installed, or too old.
        ModelError: The tensors are not those of the config, or not finite.
    """
    with torch.device("meta"):
        network = TwoWay(files.config, prefix_end=files.tokenizer.first_id(PREFIX_END))
    mapped = own_state(read_tensors(files.folder, files.weights), files.config)
    state = {name: tensor.clone() for name, tensor in mapped.items()}  # mapped memory changes with its file
    check_finite(files.folder, (name for name, tensor in state.items() if not torch.isfinite(tensor).all()))
    network.load_state_dict(state, strict=True, assign=True)
    network.restore_tables()
    return network.eval().requires_grad_(requires_grad=False), files.tokenizer, files.digest


def write(folder: Path, network: TwoWay, tokenizer_json: str) -> None:
    """Write a model in the published layout, float32.

    Raises:
        ModelError: Its backbone is not one of the published ones, or its semantics are not those of training.
    """
    value = files.published_config(network.config)
    folder.mkdir(parents=True, exist_ok=True)
    state = published_state(network.state_dict(), network.config)
    save_file(state, folder / WEIGHTS)
    (folder / TOKENIZER).write_text(tokenizer_json, encoding="utf-8")
    digests = {each: file_sha256(folder / each) for each in (WEIGHTS, TOKENIZER)}
    value[CONVERTED] = {"format": FORMAT, "source": network.config.name, "sha256": digests}
    (folder / CONFIG).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def convert(folder: Path, name: ModelName, target: Path) -> None:
    """Write a folder that is read without network: the same weights, the tokenizer, and a config with their digests.

    Args:
        folder: A model of the published layout, such as the hub's cache.
        name: Name of the model.
        target: A folder that does not exist; it appears once it is complete.

    Raises:
        ModelError: The model cannot be read, or the target exists or cannot be written.
    """
    files = PublishedFiles.find(folder, name)
    own_state(read_tensors(folder, files.weights), files.config)
    sources = {path.name: path for path in files.weights} | {TOKENIZER: files.tokenizer_path}
    if (folder / INDEX).is_file() and len(files.weights) > 1:
        sources[INDEX] = folder / INDEX
    digests = {each: file_sha256(path) for each, path in sources.items()}
    value = files.value | {CONVERTED: {"format": FORMAT, "source": str(name), "sha256": digests}}
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as place:
            complete = Path(place) / target.name
            complete.mkdir()
            for each, path in sources.items():
                shutil.copyfile(path, complete / each)
            (complete / CONFIG).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
            complete.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: not written ({error.strerror}). Choose a writable folder with space.") from error


_PLACES = {  # prefixes of keys: published, ours
    f"{FIRST}embedder.": "first_stage.backbone.native.",
    f"{FIRST}mlp.": "first_stage.projection.",
    f"{SECOND}backbone.": "second_stage.backbone.native.",
    f"{SECOND}prompt_projection.": "second_stage.soft.",
    f"{SECOND}output_projection.": "second_stage.output.",
    f"{SECOND}sequence_dropout_null_embedding": "second_stage.null_embedding",
}
_NOMIC_NAMES = {  # parts of NomicBERT's keys: published, transformers'
    "encoder.layers.": "layers.",
    "emb_ln.": "embeddings.LayerNorm.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".fc11.": ".up_proj.",
    ".fc12.": ".gate_proj.",
    ".fc2.": ".down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def own_state(state: Mapping[str, Float[Tensor, "..."]], config: TwoWayConfig) -> dict[str, Tensor]:
    """Convert the tensors of a published model to this library's names, in float32.

    Raises:
        ModelError: Tensors are missing, unknown, of another shape, or no floats; the message lists them.
    """
    files.check_tensors({name: tuple(tensor.shape) for name, tensor in state.items()}, files.layout(config))
    own: dict[str, Tensor] = {}
    for name in files.layout(config):
        tensor = state[name]
        if not tensor.is_floating_point():
            raise ModelError(
                f"Tensors are not those that the config describes: {name} {tensor.dtype} instead of floats."
            )
        own.update(_own(name, tensor.float(), config.family))
    return own


def _own(name: str, tensor: Float[Tensor, "..."], family: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor under its own name, or the three parts of a joint projection under theirs."""
    start = next(start for start in _PLACES if name.startswith(start))
    place, rest = _PLACES[start], name.removeprefix(start)
    if family == NOMIC_BERT and place.endswith("native."):
        for old, new in _NOMIC_NAMES.items():
            rest = rest.replace(old, new)
        if rest.endswith(".attn.Wqkv.weight"):
            layer = rest.removesuffix("attn.Wqkv.weight")
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{place}{layer}self_attn.{letter}_proj.weight", part
            return
    yield place + rest, tensor


def published_state(own: Mapping[str, Float[Tensor, "..."]], config: TwoWayConfig) -> dict[str, Tensor]:
    """Convert the tensors of this library's network to their published names; the inverse of `own_state`."""
    return {
        name: torch.cat([own[part] for part, _ in _own(name, torch.empty(3, 0), config.family)])
        for name in files.layout(config)
    }
