"""Where training starts: a one-way model whose vectors are those of a finished plain embedder."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from cde_rag.model.config import ModelConfig
from cde_rag.model.two_stage import TwoStage

SIBLINGS_SHARE = 0.3  # of the siblings' mean in the output; gains about 3 points before any training
BERT_LAYER = {
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "output_norm",
}


def _copy(layer: nn.Module, bert: dict[str, Tensor], number: int) -> None:
    prefix = f"encoder.layer.{number}."
    state = {
        f"{ours}.{kind}": bert[f"{prefix}{theirs}.{kind}"]
        for theirs, ours in BERT_LAYER.items()
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        parts = [bert[f"{prefix}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
        state[f"query_key_value.{kind}"] = torch.cat(parts)
    layer.load_state_dict(state)


def from_bert(folder: Path, config: ModelConfig, *, seed: int) -> TwoStage:
    """Build a one-way model from a BERT checkpoint with mean pooling, such as all-MiniLM-L6-v2.

    The second stage starts as that checkpoint: gates and roles are zero, the output map is the identity, so that its
    vectors are the checkpoint's under every context. The first stage takes the checkpoint's first layers and a
    projection that starts at nothing, and has to be distilled. A layer's context keys and values start as its own, and
    a share of the siblings' mean is in the output from the start.

    Args:
        folder: Holds `model.safetensors` with Hugging Face's BERT keys.
        config: Sizes; those of the encoder must be the checkpoint's.
        seed: Of the parts that start at random (set attention).
    """
    bert = load_file(folder / "model.safetensors")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = TwoStage(config)
    embeddings = network.embeddings
    embeddings.word.weight = nn.Parameter(bert["embeddings.word_embeddings.weight"].clone())
    # A text has one token type, so that its row is a constant of the positions.
    positions = bert["embeddings.position_embeddings.weight"] + bert["embeddings.token_type_embeddings.weight"][0]
    embeddings.position.weight = nn.Parameter(positions)
    embeddings.norm.load_state_dict({kind: bert[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")})
    for number, layer in enumerate(network.second_stage.layers):
        _copy(layer, bert, number)
        own = layer.get_submodule("query_key_value").state_dict()
        network.second_stage.given[number].load_state_dict({kind: own[kind][config.dim :] for kind in own})
    for number, layer in enumerate(network.first_stage.layers):
        _copy(layer, bert, number)
    with torch.no_grad():
        network.second_stage.sibling_output.weight.copy_(SIBLINGS_SHARE * torch.eye(config.dim))
    nn.init.zeros_(network.first_stage.down.weight)
    nn.init.zeros_(network.first_stage.down.bias)
    return network.eval()


def bert_tokenizer(folder: Path) -> str:
    """The checkpoint's tokenizer as JSON, without its cutting and padding, which are ours to do."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer.to_str()
