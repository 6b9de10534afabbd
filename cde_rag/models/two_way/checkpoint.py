"""Folders of two-way models: the published files unchanged and, after `convert`, with their digests."""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from cde_rag._files import file_sha256
from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import CONFIG, INDEX, TOKENIZER, WEIGHTS
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import published, published_state
from cde_rag.models.two_way.files import CONVERTED, FORMAT, PREFIX_END, PublishedFiles, check_finite
from cde_rag.models.two_way.network import TwoWay
from cde_rag.models.two_way.tensor_files import read_tensors


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
    mapped = published_state.own_state(read_tensors(files.folder, files.weights), files.config)
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
    value = published.published_config(network.config)
    folder.mkdir(parents=True, exist_ok=True)
    state = published_state.published_state(network.state_dict(), network.config)
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
    published_state.own_state(read_tensors(folder, files.weights), files.config)
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
