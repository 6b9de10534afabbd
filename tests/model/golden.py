"""The golden numbers in tests/reference, and the tiny models of either family that they were made with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, models, processors
from torch import Tensor

from cde_rag.models.files.names import ModelName
from cde_rag.models.two_way import checkpoint as two_way_checkpoint
from cde_rag.models.two_way import files as published
from cde_rag.models.two_way.network import TwoWay

REFERENCE = Path(__file__).parents[1] / "reference"
V1, V2 = "v1_tiny", "v2_tiny"
PREFIX_END = 3  # stands for the id of ":"


def golden(name: str, what: str) -> dict[str, Tensor]:
    return load_file(REFERENCE / name / f"{what}.safetensors")


def golden_config(name: str) -> dict[str, Any]:
    return json.loads((REFERENCE / name / "config.json").read_text())


def sizes(name: str) -> dict[str, Any]:
    """A table of the tiny backbone, as there is one of each published backbone."""
    given = golden_config(name)["backbone_config"]
    if name == V1:
        return {
            "family": "nomic_bert",
            "vocab_size": given["vocab_size"],
            "dim": given["n_embd"],
            "layers": given["n_layer"],
            "heads": given["n_head"],
            "intermediate": given["n_inner"],
            "max_positions": given["n_positions"],
        }
    return {
        "family": "modernbert",
        "vocab_size": given["vocab_size"],
        "dim": given["hidden_size"],
        "layers": given["num_hidden_layers"],
        "heads": given["num_attention_heads"],
        "intermediate": given["intermediate_size"],
        "max_positions": given["max_position_embeddings"],
        "window": given["local_attention"],
        "global_every": given["global_attn_every_n_layers"],
    }


def tiny_two_way(monkeypatch, name: str, semantics: str, **flags: Any) -> TwoWay:
    """A golden model under one semantics; flags change its published config."""
    value = golden_config(name)["cde_config"] | flags
    monkeypatch.setitem(published.BACKBONES, value["embedder"], sizes(name))
    config = published.read_config(value, ModelName(base=name, semantics=semantics))
    with torch.device("meta"):
        network = TwoWay(config, prefix_end=PREFIX_END)
    network.load_state_dict(two_way_checkpoint.own_state(golden(name, "model"), config), strict=True, assign=True)
    network.restore_tables()
    return network.eval().requires_grad_(False)


def tokenizer_json() -> str:
    """A tokenizer of letters and some words, with a colon of its own."""
    kept = Tokenizer.from_str(tiny_tokenizer())
    vocabulary = [*sorted(kept.get_vocab(), key=kept.token_to_id), ":", "_", "search", "query", "document"]
    pieces = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = kept.normalizer, kept.pre_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(each, pieces[each]) for each in ("[CLS]", "[SEP]")]
    )
    return tokenizer.to_str()


def write_folder(folder: Path, name: str, *, shards: int = 1, **changes: Any) -> Path:
    """A golden model as it would lie in a repository of the hub; changes are of its config."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(golden_config(name)["cde_config"] | {"max_seq_length": 32} | changes)
    )
    (folder / "tokenizer.json").write_text(tokenizer_json())
    state = golden(name, "model")
    if shards == 1:
        save_file(state, folder / "model.safetensors")
        return folder
    index = {}
    for number in range(shards):
        part = dict(list(state.items())[number::shards])
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / shard)
        index.update(dict.fromkeys(part, shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


@pytest.fixture
def tiny_backbones(monkeypatch) -> None:
    """The published configs name backbones of the goldens' sizes."""
    for name in (V1, V2):
        monkeypatch.setitem(published.BACKBONES, golden_config(name)["cde_config"]["embedder"], sizes(name))
