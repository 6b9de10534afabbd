"""Tokenizers of BERT encoders, read from tokenizer.json as transformers reads them.

`transformers` builds a BertTokenizer, and the XLMRobertaTokenizer of multilingual-e5-small, anew from vocabulary and
settings. One whose tokenizer.json says the same is read here; all others are other architectures.
"""

import json
import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from cde_rag.errors import ModelError
from cde_rag.models.plain.text_model import OtherArchitectureError
from cde_rag.models.tokenizer import TextTokenizer

TOKENIZER: Final = "tokenizer.json"
SETTINGS: Final = ("special_tokens_map.json", "tokenizer_config.json")  # the later one counts
_BERT: Final = (None, "BertTokenizer", "BertTokenizerFast")
_FROM_FILE: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")  # which take tokenizer.json as it is
_NAMED: Final = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_XLM_ROBERTA: Final = ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
_XLM_NAMED: Final = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
_SPACES: Final = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}  # nothing, before a split at spaces
_RIGHT: Final = ("truncation_side", "padding_side")
_OFF: Final = (  # settings that may not be set
    "additional_special_tokens",
    "add_bos_token",
    "add_eos_token",
    "extra_special_tokens",
    "max_len",
    "split_special_tokens",
)


def read_tokenizer(
    read: Callable[[str], dict[str, Any]], paths: Container[str], folder: str
) -> tuple[TextTokenizer, float]:
    """Read the tokenizer of a BERT encoder, and the maximum tokens that its settings name.

    Args:
        read: Reads a JSON object by its path; an empty one if there is no such file.
        paths: Paths that there are.
        folder: Folder of the encoder, with its slash.

    Raises:
        OtherArchitectureError: transformers would make other token ids.
    """
    if f"{folder}{TOKENIZER}" not in paths or f"{folder}added_tokens.json" in paths:
        raise OtherArchitectureError(f"a tokenizer that is not in {TOKENIZER} alone")
    settings: dict[str, Any] = {key: value for name in SETTINGS for key, value in read(folder + name).items()}
    value = read(folder + TOKENIZER)
    found = next((f"{name} {settings[name]!r:.80}" for name in _OFF if settings.get(name)), None)
    found = found or next((f"{name} left" for name in _RIGHT if settings.get(name, "right") != "right"), None)
    if found or not _cuts_on_the_right(value):
        raise OtherArchitectureError(f"a tokenizer with {found or 'special tokens or sides of its own'}")
    kind = settings.get("tokenizer_class")
    named = {name: _content(settings[name]) for name in _XLM_NAMED if settings.get(name) is not None}
    if kind in _XLM_ROBERTA:
        fits = _is_xlm_roberta(value, settings, named)
    else:
        named = {name: token for name, token in named.items() if name in _NAMED}
        fits = _is_bert(value, settings, named) if kind in _BERT else kind in _FROM_FILE and _has_all(value, named)
    if not fits or not _added_fit(value, settings):
        raise OtherArchitectureError(f"a tokenizer of class {kind} whose settings differ from those in {TOKENIZER}")
    try:
        tokenizer = TextTokenizer(json.dumps(value))
    except ModelError as error:
        raise OtherArchitectureError(str(error)) from error
    return tokenizer, float(settings.get("model_max_length") or math.inf)


def _cuts_on_the_right(value: Mapping[str, Any]) -> bool:
    """Return True if one special token of type 0 precedes a text and one follows, and cuts are at its end."""
    post: Any = value.get("post_processor") or {}
    single: list[tuple[str, Any]] = [next(iter(piece.items())) for piece in post.get("single", [])]
    parts: list[Any] = [value.get(part) or {} for part in ("truncation", "padding")]
    return (
        post.get("type") == "TemplateProcessing"
        and [kind for kind, _ in single] == ["SpecialToken", "Sequence", "SpecialToken"]
        and all(piece.get("type_id") == 0 for _, piece in single)
        and all(len(token["ids"]) == 1 for token in post.get("special_tokens", {}).values())
        and all(part.get("direction", "Right") == "Right" for part in parts)
    )


def _is_bert(value: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Return True if tokenizer.json equals a BertTokenizer of the same vocabulary and settings."""
    model: Any = value.get("model") or {}
    expected = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    pieces = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    template = [piece["SpecialToken"]["id"] for piece in value["post_processor"]["single"][::2]]
    return (
        value.get("normalizer") == expected
        and value.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and {name: model.get(name, pieces[name]) for name in pieces} == pieces
        and model.get("max_input_chars_per_word", 100) == 100
        and {**_NAMED, **named} == _NAMED
        and template == ["[CLS]", "[SEP]"]
        and {token["content"] for token in value.get("added_tokens", [])} == set(_NAMED.values())
    )


def _is_xlm_roberta(value: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Return True if tokenizer.json equals an XLMRobertaTokenizer of the same vocabulary and settings."""
    model: Any = value.get("model") or {}
    pieces = [piece for piece, _ in model.get("vocab", [])]
    post = value["post_processor"]
    normalizer: Any = value.get("normalizer") or {"type": "Sequence", "normalizers": []}
    normalizers = [each for each in normalizer.get("normalizers", [normalizer]) if each != _SPACES]
    before: Any = value.get("pre_tokenizer") or {}
    parts: list[Any] = before.get("pretokenizers") or [{}, {}]
    split, space = parts
    usual = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    usual |= {"add_prefix_space": True, "str_rep": "▁"}  # of earlier versions
    return (
        {name: model.get(name) for name in ("type", "unk_id")} == {"type": "Unigram", "unk_id": 3}
        and not model.get("byte_fallback")
        and pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
        and [each["type"] for each in normalizers] in ([], ["Precompiled"])
        and before.get("type") == "Sequence"
        and split == {"type": "WhitespaceSplit"}
        and {"type", "replacement"} <= space.keys()
        and bool({"prepend_scheme", "add_prefix_space"} & space.keys())
        and space.items() <= usual.items()
        and settings.get("add_prefix_space", True) is True
        and {**_XLM_NAMED, **named} == _XLM_NAMED
        and [piece["SpecialToken"]["id"] for piece in post["single"][::2]] == ["<s>", "</s>"]
        and [post["special_tokens"][token]["ids"] for token in ("<s>", "</s>")] == [[0], [2]]
        and {token["content"] for token in value.get("added_tokens", [])} == set(_XLM_NAMED.values())
        and all(pieces[token["id"]] == token["content"] for token in value["added_tokens"])
    )


def _has_all(value: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Return True if the special tokens of the settings are special in tokenizer.json."""
    special = {token["content"] for token in value.get("added_tokens", []) if token["special"]}
    return set(named.values()) <= special


def _added_fit(value: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return True if the added tokens of the settings are those of tokenizer.json."""
    there = {str(token["id"]): {**token, "id": None} for token in value.get("added_tokens", [])}
    decoder: Any = settings.get("added_tokens_decoder") or {}
    return all(there.get(number) == {**token, "id": None} for number, token in decoder.items())


def _content(token: Any) -> str:
    return token if isinstance(token, str) else str(token["content"])
