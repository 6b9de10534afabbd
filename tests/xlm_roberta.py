"""A tiny tokenizer of XLM-RoBERTa's kind, as that of multilingual-e5-small, for a plain model."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

from tiny import WORDS

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SETTINGS = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False},
    "model_max_length": 12,
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "sp_model_kwargs": {},
    "tokenizer_class": "XLMRobertaTokenizer",
    "unk_token": "<unk>",
}


def xlm_roberta_json() -> dict[str, Any]:
    """Content of a tokenizer.json of an early version: 64 pieces, and a normalisation of É to e."""
    letters = "abcdefghilmnoprstuvwxy▁.:"
    pieces = [*SPECIAL, *(f"▁{word}" for word in WORDS), *letters]
    pieces = [*pieces, *(f"<{number}>" for number in range(63 - len(pieces))), "<mask>"]
    added = [
        {"id": pieces.index(token), "content": token, "single_word": False, "lstrip": token == "<mask>"}
        | {"rstrip": False, "normalized": False, "special": True}
        for token in [*SPECIAL, "<mask>"]
    ]
    vocabulary = [[piece, -float(len(SPECIAL) + place % 7)] for place, piece in enumerate(pieces)]
    template = [_special("<s>"), {"Sequence": {"id": "A", "type_id": 0}}, _special("</s>")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(_charsmap()).decode()},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, _special("</s>"), {"Sequence": {"id": "B", "type_id": 0}}, _special("</s>")],
            "special_tokens": {
                token: {"id": token, "ids": [pieces.index(token)], "tokens": [token]} for token in ("<s>", "</s>")
            },
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary},
    }


def write_tokenizer(folder: Path, **settings: Any) -> None:
    """Give a plain model this tokenizer, with settings besides the usual ones."""
    (folder / "tokenizer.json").write_text(json.dumps(xlm_roberta_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _charsmap() -> bytes:
    """A double-array trie of one entry, É, and its replacement."""
    first, second = "É".encode()
    units = [0] * 2048
    units[0] = 256 << 10
    units[256 ^ first] = first | 512 << 10
    units[256 ^ first ^ 512 ^ second] = second | 1 << 8 | 1024 << 10
    return struct.pack("<I2048I", 4 * len(units), *units) + b"e\0"
