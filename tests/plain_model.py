"""SentenceTransformers without context that are small enough for every test."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tiny import tiny_tokenizer
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

PROMPTS = {"query": "bank: ", "passage": "river: "}


def write_transformer(folder: Path, *, seed: int = 0, dim: int = 16) -> Path:
    """A random encoder of two layers which reads 12 tokens and has a prompt for each role."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 64}
    parts = folder.with_name(f"{folder.name} parts")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tiny_tokenizer()), pad_token="[PAD]", model_max_length=12
    )
    tokenizer.save_pretrained(parts)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(BertConfig(vocab_size=64, hidden_size=dim, initializer_range=0.5, **sizes)).save_pretrained(parts)
    modules = [Transformer(str(parts)), Pooling(dim, "mean")]
    SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def write_static(folder: Path, *, seed: int = 0) -> Path:
    """A random vector for each word; all files in one folder, and no limit to a text's length."""
    vectors = torch.randn(64, 16, generator=torch.Generator().manual_seed(seed))
    modules = [StaticEmbedding(Tokenizer.from_str(tiny_tokenizer()), embedding_weights=vectors)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder
