"""Tokenizers of encoders, read from tokenizer.json as transformers reads them.

`transformers` builds a BertTokenizer, a RobertaTokenizer and an XLMRobertaTokenizer anew from vocabulary and settings.
One whose tokenizer.json says the same is read here; all others are other architectures. Of ModernBERT it takes
tokenizer.json as it is.
"""

import json
import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from tokenizers.pre_tokenizers import ByteLevel

from cde_rag.errors import ModelError
from cde_rag.models.plain.settings import OtherArchitectureError, check_settings
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
_ROBERTA: Final = ("RobertaTokenizer", "RobertaTokenizerFast")
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
_INPUTS: Final = ["input_ids", "attention_mask"]  # what an encoder is given: the ids first
_RIGHT: Final = ("truncation_side", "padding_side")
_KNOWN: Final[Mapping[str, Any]] = (
    dict.fromkeys(  # settings that are read here, or change no token ids of a text by itself
        (
            "add_prefix_space added_tokens_decoder backend bos_token clean_up_tokenization_spaces cls_token "
            "do_basic_tokenize do_lower_case eos_token errors is_local keep_accents local_files_only mask_token "
            "max_length model_max_length model_input_names model_specific_special_tokens name_or_path never_split "
            "pad_to_multiple_of pad_token pad_token_type_id padding_side processor_class return_offsets_mapping "
            "sep_token sp_model_kwargs special_tokens_map_file stride strip_accents token_type_ids_pattern "
            "tokenize_chinese_chars tokenizer_class tokenizer_file transformers_version trim_offsets truncation "
            "truncation_side truncation_strategy unk_token use_fast vocab_size wordpieces_prefix"
        ).split()
    )
)
_OFF: Final = (  # settings that may not be set
    "additional_special_tokens",
    "add_bos_token",
    "add_eos_token",
    "extra_special_tokens",
    "max_len",
    "split_special_tokens",
)


def read_tokenizer(
    read: Callable[[str], dict[str, Any]], paths: Container[str], folder: str, *, as_it_is: bool = False
) -> tuple[TextTokenizer, float]:
    """Read the tokenizer of an encoder, and the maximum tokens that its settings name.

    Args:
        read: Reads a JSON object by its path; an empty one if there is no such file.
        paths: Paths that there are.
        folder: Folder of the encoder, with its slash.
        as_it_is: True if transformers takes tokenizer.json as it is, whatever class the settings name.

    Raises:
        OtherArchitectureError: transformers would make other token ids.
    """
    if f"{folder}{TOKENIZER}" not in paths or f"{folder}added_tokens.json" in paths:
        raise OtherArchitectureError(f"a tokenizer that is not in {TOKENIZER} alone")
    settings = tokenizer_settings(read, folder)
    value = read(folder + TOKENIZER)
    found = next((f"{name} {settings[name]!r:.80}" for name in _OFF if settings.get(name)), None)
    found = found or next((f"{name} left" for name in _RIGHT if settings.get(name, "right") != "right"), None)
    inputs: Any = settings.get("model_input_names", _INPUTS)
    if not isinstance(inputs, list) or inputs[:1] != _INPUTS[:1] or _INPUTS[1] not in inputs:
        found = found or f"model_input_names {inputs!r:.80}"  # without a mask, texts are mixed with their padding
    if found or not _cuts_on_the_right(value):
        raise OtherArchitectureError(f"a tokenizer with {found or 'special tokens or sides of its own'}")
    check_settings(f"the tokenizer's settings in {folder or 'its folder'}", settings, known=_KNOWN)
    kind = _FROM_FILE[0] if as_it_is else settings.get("tokenizer_class")
    named = {name: _content(settings[name]) for name in _XLM_NAMED if settings.get(name) is not None}
    if kind in _FROM_FILE:
        fits = _has_all(value, named)
    elif kind in _XLM_ROBERTA:
        fits = _is_xlm_roberta(value, settings, named)
    elif kind in _ROBERTA:
        fits = _is_roberta(value, settings, named)
    else:
        named = {name: token for name, token in named.items() if name in _NAMED}
        fits = kind in _BERT and _is_bert(value, settings, named)
    if not fits or not _added_fit(value, settings):
        raise OtherArchitectureError(f"a tokenizer of class {kind} whose settings differ from those in {TOKENIZER}")
    try:
        tokenizer = TextTokenizer(json.dumps(value))
    except ModelError as error:
        raise OtherArchitectureError(str(error)) from error
    return tokenizer, float(settings.get("model_max_length") or math.inf)


def tokenizer_settings(read: Callable[[str], dict[str, Any]], folder: str) -> dict[str, Any]:
    """Return the settings of a tokenizer in a folder; arguments as of `read_tokenizer`."""
    return {key: value for name in SETTINGS for key, value in read(folder + name).items()}


def _cuts_on_the_right(value: Mapping[str, Any]) -> bool:
    """Return True if one special token of type 0 precedes a text and one follows, and cuts are at its end."""
    post: Any = value.get("post_processor") or {}
    parts: list[Any] = [value.get(part) or {} for part in ("truncation", "padding")]
    return (post.get("type") == "RobertaProcessing" or _is_template(post)) and all(
        part.get("direction", "Right") == "Right" for part in parts
    )


def _is_template(post: Mapping[str, Any]) -> bool:
    single: list[tuple[str, Any]] = [next(iter(piece.items())) for piece in post.get("single", [])]
    return (
        post.get("type") == "TemplateProcessing"
        and [kind for kind, _ in single] == ["SpecialToken", "Sequence", "SpecialToken"]
        and all(piece.get("type_id") == 0 for _, piece in single)
        and all(len(token["ids"]) == 1 for token in post.get("special_tokens", {}).values())
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


def _is_roberta(value: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Return True if tokenizer.json equals a RobertaTokenizer of the same vocabulary and settings."""
    model: Any = value.get("model") or {}
    vocabulary: dict[str, int] = model.get("vocab") or {}
    off = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges")
    spaced = settings.get("add_prefix_space", False)
    before = {"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": True, "use_regex": True}
    ends = {name: [_XLM_NAMED[f"{name}_token"], vocabulary.get(_XLM_NAMED[f"{name}_token"])] for name in ("sep", "cls")}
    return (
        model.get("type", "BPE") == "BPE"
        and not any(model.get(name) for name in off)
        and value.get("normalizer") is None
        and before.items() <= {"use_regex": True, **(value.get("pre_tokenizer") or {})}.items()
        and value["post_processor"].get("type") == "RobertaProcessing"
        and ends.items() <= value["post_processor"].items()
        and set(ByteLevel.alphabet()) <= vocabulary.keys()  # no character is unknown
        and {**_XLM_NAMED, **named} == _XLM_NAMED
        and {token["content"] for token in value.get("added_tokens", [])} == set(_XLM_NAMED.values())
        and all(vocabulary.get(token["content"]) == token["id"] for token in value["added_tokens"])
        and settings.get("trim_offsets", True) is True
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
