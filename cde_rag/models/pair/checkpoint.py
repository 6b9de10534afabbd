"""Folders of pairs: the second half's weights in four bits, and name and digest of the first half's model."""

from pathlib import Path

import torch
from jaxtyping import Float, Float16, UInt8
from safetensors.torch import save
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.files.model_files import (
    CONFIG,
    TOKENIZER,
    VOCABULARY,
    WEIGHTS,
    check_first_half,
    checked,
    digest,
    first_half,
    read_header,
    write_files,
)
from cde_rag.models.files.stored_tensors import BLOCK, MIDDLE, SCALE
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.pair.network import PairNetwork
from cde_rag.models.pair.tokenizer import PairTokenizer


def pack(value: Float[Tensor, "rows columns"]) -> tuple[UInt8[Tensor, "rows halves"], Float16[Tensor, "rows blocks"]]:
    """Quantise a matrix whose rows are multiples of a block to codes and scales; unpacked matrices return bit by bit.

    The entry of largest magnitude of a block becomes −8 times its scale, the others the nearest of −8 … 7 times it.

    Source: llama.cpp, quantize_row_q4_0.
    """
    blocks = value.float().reshape(len(value), -1, BLOCK)
    largest = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))
    scale = (largest / -MIDDLE).half()
    inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
    codes = (blocks * inverse + MIDDLE + 0.5).floor().clamp(0, 2 * MIDDLE - 1).to(torch.uint8)
    low, high = codes.chunk(2, dim=2)
    return (low | high << 4).flatten(1), scale[..., 0]


def unpack(
    codes: UInt8[Tensor, "rows halves"], scales: Float16[Tensor, "rows blocks"]
) -> Float[Tensor, "rows columns"]:
    """Compute the float32 matrix of codes and scales; of a block the low halves of its bytes come first."""
    packed = codes.reshape(len(codes), -1, BLOCK // 2)
    entries = torch.cat([packed & 15, packed >> 4], dim=2).float() - MIDDLE
    return (entries * scales.float()[..., None]).flatten(1)


FIRST = "first."  # names of the first half's tensors begin so; they are in its own file
_FOUR_BITS = ("word.weight", "query_key_value.weight", "output.weight", "up.weight", "down.weight")  # of the second

_WORDS = "second.embeddings.word.weight"
_APART_BYTES = 2**25  # larger word embeddings get a file of their own


def write(folder: Path, network: PairNetwork, tokenizer: PairTokenizer) -> None:
    """Write a pair as three files, or four with a large vocabulary; its first half is only named in them."""
    stored: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        if name.startswith("second.") and name.endswith(_FOUR_BITS):
            stored[name], stored[name + SCALE] = pack(value)
        elif not name.startswith(FIRST):
            stored[name] = value.float().contiguous()
    files = {WEIGHTS: stored}
    if stored[_WORDS].nbytes > _APART_BYTES:
        files[VOCABULARY] = {name: stored.pop(name) for name in (_WORDS, _WORDS + SCALE)}
    weights = {name: save(tensors) for name, tensors in files.items()}
    write_files(folder, network.config, weights, tokenizer.serialised)


def read(folder: Path) -> tuple[PairNetwork, PairTokenizer, str]:
    """Read a pair's folder, and its first half from the package.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        ModelError: A file is missing, damaged or of a newer format, its tensors are not those of the config, or the
            first half is not in the package or differs from that with which the pair was made.
    """
    header = read_header(folder, "a pair's config")
    config = PairConfig.from_json(header.config)
    first, first_tokenizer, found = checkpoints.read(first_half(config.name, config.first))
    check_first_half(config.name, config.first, expected=config.first_sha256, found=found)
    if config.dim != first.config.dim + config.second_dim:
        raise ModelError(
            f"The config's dim has to be {first.config.dim} + {config.second_dim}, its halves'; found {config.dim}."
        )
    state = checkpoints.read_state(folder, header)
    serialised = checked(folder / TOKENIZER, header.tokenizer_sha256).decode()
    tokenizer = PairTokenizer(first_tokenizer, first.config.vocab_size, serialised)
    with torch.device("meta"):
        network = PairNetwork(config, first)
    try:
        named = {FIRST + name: tensor for name, tensor in first.state_dict().items()}
        network.load_state_dict(state | named, strict=True, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS} does not hold the tensors that {CONFIG} describes: {error}") from error
    return network.eval().requires_grad_(requires_grad=False), tokenizer, digest(config, header.all_weights_sha256)
