"""A pair of random weights whose first half is the tiny model, in a package folder of its own."""

import torch
from tiny import tiny_network, tiny_tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from cde_rag.models.pair.checkpoint import pack, unpack
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.pair.network import PairNetwork
from cde_rag.models.pair.tokenizer import PairTokenizer
from cde_rag.models.tokenizer import TextTokenizer


def tiny_pieces() -> str:
    """A Unigram tokenizer of ASCII and a few words, as JSON."""
    words = ["▁the", "▁river", "▁bank", "▁loan", "▁water", "▁", "query", ":"]
    signs = [chr(code) for code in range(33, 127) if chr(code) != ":"]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = Tokenizer(
        models.Unigram([*pieces, *((word, -2.0) for word in words), *((each, -6.0) for each in signs)], unk_id=3)
    )
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer.to_str()


def tiny_pair(first: str, first_sha256: str) -> tuple[PairNetwork, PairTokenizer]:
    """The network, whose second half's weights have passed through four bits already, and its tokenizer."""
    one_way, pieces = tiny_network(), tiny_pieces()
    config = PairConfig(
        name="tiny-pair",
        first=first,
        first_sha256=first_sha256,
        dim=16 + 32,
        second_dim=32,
        vocab_size=TextTokenizer(pieces).size,
        layers=2,
        heads=4,
        intermediate=64,
        max_positions=64,
        max_length=32,
        second_share=0.6,
        first_stage_max_length=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = PairNetwork(config, one_way).eval().requires_grad_(requires_grad=False)
        network.rotation = torch.linalg.qr(torch.randn(48, 48))[0].contiguous()
    for name, parameter in network.second.named_parameters():
        if parameter.ndim == 2 and "position" not in name:
            parameter.copy_(unpack(*pack(parameter)))
    return network, PairTokenizer(TextTokenizer(tiny_tokenizer()), one_way.config.vocab_size, pieces)
