"""Replicas of published architectures with random weights, made by sentence-transformers itself."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordWeights
from tiny import WORDS, tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    BertTokenizer,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from xlm_roberta import write_tokenizer

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
ROLES = {"query": "bank: ", "document": "river: "}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LIMIT = 24  # tokens that replicas read
TEXT = " ".join(WORDS)


def write_parts(folder: Path, architecture: str, *, seed: int = 0, limit: int = LIMIT, **sizes: Any) -> Path:
    """Write an encoder of transformers with its tokenizer."""
    write, config, kind, given = ENCODERS[architecture]
    folder.mkdir(parents=True)
    vocabulary = write(folder, limit)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = {**TINY, "initializer_range": 0.5, "vocab_size": vocabulary, **given, **sizes}
        kind(config(**settings)).save_pretrained(folder)
    return folder


def write_replica(
    folder: Path, modules: Sequence[Any], *, prompts: dict[str, str] | None = ROLES, **settings: Any
) -> Path:
    """Write a SentenceTransformer of modules."""
    model = SentenceTransformer(modules=list(modules), prompts=prompts, device="cpu", **settings)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def write_encoder(folder: Path, architecture: str, head: str, **sizes: Any) -> Path:
    """Write a SentenceTransformer of an architecture and a head."""
    parts = write_parts(folder.with_name(f"{folder.name} parts"), architecture, **sizes)
    transformer = Transformer(str(parts))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return write_replica(folder, [transformer, *HEADS[head](transformer.get_embedding_dimension(), transformer)])


def write_table(folder: Path, *, dim: int = 16, seed: int = 0, then: Sequence[Any] = ()) -> Path:
    """Write a static table."""
    vectors = torch.randn(64, dim, generator=torch.Generator().manual_seed(seed))
    return write_replica(folder, [StaticEmbedding(Tokenizer.from_str(tiny_tokenizer()), vectors), *then])


def write_router(folder: Path, *, table: bool, then: Sequence[Any] = (Normalize(),)) -> Path:
    """Write a model whose queries go through a smaller encoder than documents, or through a static table."""
    documents = Transformer(str(write_parts(folder.with_name(f"{folder.name} documents"), "bert")))
    if table:
        queries = [StaticEmbedding(Tokenizer.from_str(tiny_tokenizer()), torch.randn(64, 16))]
    else:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "seed": 3, "limit": 9}
        small = write_parts(folder.with_name(f"{folder.name} queries"), "roberta", **sizes)
        queries = [Transformer(str(small)), Pooling(8, "mean"), Dense(8, 16, activation_function=torch.nn.Identity())]
    router = Router.for_query_document(queries, [documents, Pooling(16, "cls")])
    return write_replica(folder, [router, *then])


def write_cross_encoder(
    folder: Path, architecture: str, *, seed: int = 0, limit: int = LIMIT, labels: int = 1, **settings: Any
) -> Path:
    """Write a CrossEncoder of an architecture, as sentence-transformers saves it."""
    write, config, _, given = ENCODERS[architecture]
    parts = folder.with_name(f"{folder.name} parts")
    parts.mkdir(parents=True)
    vocabulary = _bert_with_pairs(parts, limit) if architecture == "bert" else write(parts, limit)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {**TINY, "initializer_range": 0.5, "vocab_size": vocabulary, "num_labels": labels, **given, **settings}
        model = AutoModelForSequenceClassification.from_config(config(**sizes))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)  # zeros by default, in which a lost bias is not seen
        model.save_pretrained(parts)
    made = CrossEncoder(str(parts), device="cpu")
    if labels == 1:  # scores of random weights are nearly the same, or saturate the sigmoid
        last = getattr(made.model.classifier, "out_proj", made.model.classifier)
        some = [(one, f"the {other} of the {one}") for one in WORDS[2:8] for other in WORDS[8:14]]
        logits = made.predict(some, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
        with torch.no_grad():
            last.weight *= 2 / logits.std()
            last.bias.copy_((last.bias - logits.mean()) * 2 / logits.std())
    made.save_pretrained(str(folder))
    return folder


def _bert_with_pairs(folder: Path, limit: int) -> int:
    vocabulary = Tokenizer.from_str(tiny_tokenizer()).get_vocab()
    vocabulary["[MASK]"] = len(vocabulary)
    BertTokenizer(vocab=vocabulary, model_max_length=limit).save_pretrained(folder)
    return len(vocabulary)


def _bert(folder: Path, limit: int) -> int:
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        model_max_length=limit,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    return 64


def byte_level(special: Sequence[str], prefix: bool = False) -> Tokenizer:
    """A tokenizer of byte pairs, of the words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer


def _roberta(folder: Path, limit: int) -> int:
    trained = byte_level(SPECIAL)
    state = __import__("json").loads(trained.to_str())["model"]
    merges = [tuple(each) for each in state["merges"]]
    RobertaTokenizer(
        vocab=state["vocab"],
        merges=merges,
        model_max_length=limit,
        mask_token=AddedToken("<mask>", lstrip=True, normalized=False, special=True),
    ).save_pretrained(folder)
    return len(state["vocab"])


def _xlm_roberta(folder: Path, limit: int) -> int:
    write_tokenizer(folder, model_max_length=limit)
    return 64


def _modern_bert(folder: Path, limit: int) -> int:
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = byte_level(special)
    tokenizer.normalizer = normalizers.NFC()
    ids = {name: tokenizer.token_to_id(name) for name in special}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    named = {f"{name.strip('[]').lower()}_token": name for name in special}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=limit,
        model_input_names=["input_ids", "attention_mask"],
        **named,
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


ENCODERS: dict[str, tuple[Callable[[Path, int], int], Any, Any, dict[str, Any]]] = {
    "bert": (_bert, BertConfig, BertModel, {"max_position_embeddings": 64}),
    "roberta": (_roberta, RobertaConfig, RobertaModel, {"max_position_embeddings": 66, "type_vocab_size": 1}),
    "xlm-roberta": (
        _xlm_roberta,
        XLMRobertaConfig,
        XLMRobertaModel,
        {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "modernbert": (
        _modern_bert,
        ModernBertConfig,
        ModernBertModel,
        {
            "num_hidden_layers": 4,
            "max_position_embeddings": 128,
            "local_attention": 8,
            "pad_token_id": 3,
            "initializer_cutoff_factor": 2.0,
        },
    ),
}


def _weights(transformer: Transformer) -> WordWeights:
    tokenizer = transformer.tokenizer
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    return WordWeights(vocabulary, {word: 0.2 + 0.37 * (place % 5) for place, word in enumerate(WORDS)}, 0.5)


HEADS: dict[str, Callable[[int, Any], list[Any]]] = {
    **{mode: lambda dim, _, mode=mode: [Pooling(dim, mode)] for mode in Pooling.POOLING_MODES},
    "joined": lambda dim, _: [Pooling(dim, ("cls", "max", "mean_sqrt_len_tokens")), Normalize()],
    "dense": lambda dim, _: [Pooling(dim), Dense(dim, 2 * dim, activation_function=torch.nn.Identity()), Normalize()],
    "denses": lambda dim, _: [
        Pooling(dim, "cls"),
        Dense(dim, 12),
        Normalize(),
        Dense(12, 7, bias=False, activation_function=torch.nn.Identity()),
    ],
    "token dense": lambda dim, _: [
        Dense(dim, 12, activation_function=torch.nn.Tanh(), module_input_name="token_embeddings"),
        Pooling(12, "max"),
    ],
    "weights": lambda dim, transformer: [_weights(transformer), Pooling(dim, ("mean", "max"))],
    "weights and places": lambda dim, transformer: [_weights(transformer), Pooling(dim, ("weightedmean", "lasttoken"))],
}
