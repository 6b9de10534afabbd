"""A model of random weights that is small enough for every test."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from cde_rag.models import CDEModel
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.tokenizer import TextTokenizer

WORDS = "the a river bank money loan water flood rate interest fish boat credit risk delta of in and to is".split()


def tiny_network(*, seed: int = 0) -> TwoStage:
    """A random one-way model whose context acts: gates, roles and output map are far from where training starts."""
    sizes = {
        "dim": 16,
        "layers": 2,
        "context_layers": 2,
        "heads": 4,
        "intermediate": 32,
        "max_positions": 64,
        "max_length": 32,
        "latents": 8,
        "lead_share": 0.4,
        "full_likeness": 0.9,
    }
    config = ModelConfig(name="tiny", vocab_size=64, first_stage_max_length=32, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = TwoStage(config)
        with torch.no_grad():
            second = network.second_stage
            for parameter in (second.gates, second.roles, second.sibling_level):
                parameter.normal_()
            network.output_map.exponent.fill_(0.5)
    return network.eval().requires_grad_(requires_grad=False)


def tiny_tokenizer() -> str:
    """A word-piece tokenizer of some words, the letters and [CLS] … [SEP], as JSON."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *WORDS[:20],
        *letters[1:20],
        *(f"##{letter}" for letter in letters[:20]),
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return tokenizer.to_str()


def tiny_cde_model(*, seed: int = 0) -> CDEModel:
    """The network as users hold it; the seed makes other weights."""
    return CDEModel(
        tiny_network(seed=seed), TextTokenizer(tiny_tokenizer()), f"{seed:064}", device="cpu", dtype="float32"
    )
