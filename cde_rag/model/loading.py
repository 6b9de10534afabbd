"""Loading of models by name: bundled models, folders and the hub."""

import shutil
from dataclasses import replace
from pathlib import Path

from cde_rag.errors import ModelError
from cde_rag.model import checkpoints, hub
from cde_rag.model.names import ModelName
from cde_rag.model.pair import pair_checkpoint
from cde_rag.model.pair.pair_network import PairNetwork
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage
from cde_rag.model.two_way import checkpoint, published
from cde_rag.model.two_way.network import TwoWay
from cde_rag.model.weights import read_json


def load(name: ModelName, *, token: str | None) -> tuple[TwoStage | TwoWay | PairNetwork, TextTokenizer, str, Path]:
    """Load a model.

    Args:
        name: Name of the model, with the options of its reading.
        token: Token for the hub.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, the digest of config and weights, and the folder.

    Raises:
        MissingExtraError: A two-way model needs `transformers`, one from the hub `huggingface_hub`.
        ModelError: No such model, or its files are incomplete, damaged, pickled or of a newer format.
    """
    folder, exact = resolve(name, token=token)
    config = read_json(folder / checkpoints.CONFIG)
    if published.is_published(config):
        return *checkpoint.read(folder, exact), folder
    if name.has_options:
        raise ModelError(
            f"attention, semantics, sizes and prefixes are for two-way models; {name.base} is read in one way only."
        )
    if pair_checkpoint.is_pair(config):
        return *pair_checkpoint.read(folder), folder
    return *checkpoints.read(folder), folder


def convert(name: ModelName, target: Path, *, token: str | None) -> None:
    """Write a two-way model to a folder that is read without network.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ModelError: The model cannot be read, needs no conversion, or the target exists or cannot be written.
    """
    folder, exact = resolve(name, token=token)
    if not published.is_published(read_json(folder / checkpoints.CONFIG)):
        raise ModelError(f"{name.base} works without network as it is; give its name or folder where it is used.")
    checkpoint.convert(folder, exact, target)


def copy(folder: Path, name: ModelName, target: Path) -> None:
    """Copy the folder of a loaded model to another one, from which it is read without network.

    Args:
        folder: Folder from `load`.
        name: Name in the model's identity.
        target: A folder that does not exist.

    Raises:
        ModelError: The files are missing, or the target exists or cannot be written.
    """
    if published.is_published(read_json(folder / checkpoints.CONFIG)):
        return checkpoint.convert(folder, name, target)
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
    try:
        target.mkdir(parents=True)
        for file in (checkpoints.CONFIG, checkpoints.WEIGHTS, checkpoints.TOKENIZER):
            shutil.copyfile(folder / file, target / file)
    except OSError as error:
        raise ModelError(f"{target}: not written ({error}). Choose a writable folder with space.") from error


def resolve(name: ModelName, *, token: str | None) -> tuple[Path, ModelName]:
    """Return the folder of a model, downloaded if necessary, and the name under which it is found again.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ModelError: There is no such model.
    """
    folder = checkpoints.local(name.base)
    if folder is None and name.is_hub_id:
        folder = hub.fetch(name.base, revision=name.revision, token=token)
        return folder, replace(name, revision=folder.name)
    if name.revision is not None:
        raise ModelError(f"A revision is for models of the hub; {name.base!r} is none. Leave the revision out.")
    folder = checkpoints.find(name.base)
    return folder, replace(name, base=str(folder.resolve()))
