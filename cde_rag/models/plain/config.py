"""Encoders of sentence-transformers, read from their files without torch: sizes, head, tokenizer and weights.

Every setting that could change a vector is checked: what is not known here is another architecture, which
sentence-transformers itself runs.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag.models.files.stored_tensors import float_state
from cde_rag.models.files.weights import weight_files
from cde_rag.models.files.word_embeddings import WordEmbeddings
from cde_rag.models.plain.bert import BertEncoder
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.modern_bert import ModernEncoder
from cde_rag.models.plain.modules import Head, read_modules
from cde_rag.models.plain.settings import (
    OtherArchitectureError,
    check_settings,
    json_object,
    other_forms,
    stored_shapes,
)
from cde_rag.models.plain.tokenizer import read_tokenizer
from cde_rag.models.tokenizer import TextTokenizer

State: TypeAlias = dict[str, Float32[np.ndarray, "..."]]

SETTINGS: Final = "config_sentence_transformers.json"
TRANSFORMER: Final = "sentence_bert_config.json"
ARCHITECTURES: Final = {
    "bert": BertEncoder,
    "roberta": BertEncoder,
    "xlm-roberta": BertEncoder,
    "modernbert": ModernEncoder,
}
_KIND: Final = "SentenceTransformer"
_LONGEST: Final = 2**20  # tokens of a text, of any encoder: a graph holds the angles of as many positions
_PROMPTS: Final = {"query": "", "document": ""}  # of a model that has none
EMBEDDING: Final[Mapping[str, Any]] = {  # settings of a Transformer module that returns the states of tokens
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


@dataclass(frozen=True, kw_only=True)
class StoredEncoder:
    """An encoder in files, but for the work that follows it.

    Attributes:
        files: Files of the model.
        encoder: Sizes of the encoder; its max_length is the model's own.
        tokenizer: Tokenizer, with the token ids of sentence-transformers.
        weights: Paths of the files of weights.
        prefix: Start of the names of the encoder's weights, such as "bert.".
    """

    files: ModelFiles
    encoder: BertEncoder | ModernEncoder
    tokenizer: TextTokenizer
    weights: tuple[str, ...]
    prefix: str

    @property
    def max_length(self) -> int:
        """Maximum tokens of a text by the model's files."""
        return self.encoder.sizes.max_length

    def table(self, name: str) -> WordEmbeddings:
        """Map a table of embeddings into memory.

        Args:
            name: Its name without prefix.

        Raises:
            ModelError: The file was removed.
        """
        return WordEmbeddings([self.files.folder / path for path in self.weights], self.prefix + name)

    def state(self) -> State:
        """Read the weights of the encoder but for its word embeddings, by their stored names without prefix.

        Raises:
            ModelError: They were written meanwhile, or hold NaN or infinity.
        """
        wanted = self.encoder.shapes().keys() - {self.encoder.words}
        found = self.stored({self.prefix + name for name in wanted})
        return {name.removeprefix(self.prefix): value for name, value in found.items()}

    def stored(self, names: Container[str]) -> State:
        """Read weights by their stored names; errors as of `state`."""
        found = State()
        for path in self.weights:
            found |= float_state(self.files.content(path), lambda name: name in names)
        return found


@dataclass(frozen=True, kw_only=True)
class TextEncoder(StoredEncoder):
    """An encoder of texts, with the modules that follow it.

    Attributes:
        head: Work on the states of tokens.
    """

    head: Head

    @classmethod
    def read(cls, files: ModelFiles, role: str = "document") -> "TextEncoder":
        """Read the encoder of a role's texts, but for its weights.

        Args:
            files: Files of the model.
            role: "query" or "document".

        Raises:
            ModelError: A file was written meanwhile.
            OtherArchitectureError: It is no encoder, or another one; with what was found.
        """
        with other_forms():
            return cls._read(files, role)

    @classmethod
    def _read(cls, files: ModelFiles, role: str) -> "TextEncoder":
        first, *modules = read_modules(files, role)
        if first.kind != "Transformer":
            raise OtherArchitectureError(f"the module {first.kind}")
        value = json_object(files, f"{first.folder}config.json")
        encoder = read_encoder(files, first.folder, value, task=EMBEDDING)
        head = Head.read(files, modules, dim=encoder.encoder.sizes.dim, pooled=False)
        if head.word_weights is not None and len(head.word_weights.weights) < encoder.tokenizer.size:
            raise OtherArchitectureError(f"word weights of fewer than {encoder.tokenizer.size} tokens")
        return cls(
            files=files,
            encoder=encoder.encoder,
            tokenizer=encoder.tokenizer,
            weights=encoder.weights,
            prefix=encoder.prefix,
            head=head,
        )


def read_encoder(files: ModelFiles, folder: str, value: Mapping[str, Any], *, task: Mapping[str, Any]) -> StoredEncoder:
    """Read the encoder in a folder of a model, but for its weights.

    Args:
        files: Files of the model.
        folder: Folder of the encoder, with its slash; empty for the model's own.
        value: Content of its config.json.
        task: The only value of settings of a Transformer module that say what it is for.

    Raises:
        ModelError: A file was written meanwhile.
        OtherArchitectureError: It is another encoder; with what was found.
    """
    if (architecture := ARCHITECTURES.get(str(value.get("model_type")))) is None:
        raise OtherArchitectureError(f"the architecture {value.get('model_type')!r}")
    read = partial(json_object, files)
    tokenizer, limit = read_tokenizer(read, files.digests, folder, as_it_is=architecture is ModernEncoder)
    max_length = _max_length(files, folder, task)
    encoder = architecture.read(value, name=files.name, max_length=max_length, limit=limit)
    if not tokenizer.special_tokens < encoder.sizes.max_length <= _LONGEST:
        raise OtherArchitectureError(f"texts of at most {encoder.sizes.max_length} tokens")
    if tokenizer.size > encoder.sizes.vocab_size:
        raise OtherArchitectureError(f"{tokenizer.size} tokens for {encoder.sizes.vocab_size} word embeddings")
    weights = tuple(path.relative_to(files.folder).as_posix() for path in weight_files(files.folder / folder))
    prefix = _prefix(files, weights, encoder)
    return StoredEncoder(files=files, encoder=encoder, tokenizer=tokenizer, weights=weights, prefix=prefix)


def read_prompts(files: ModelFiles) -> Mapping[str, str]:
    """Return the prompts of a model by their names; "query" and "document" are there in any case.

    Raises:
        ModelError: A file was written meanwhile.
        OtherArchitectureError: There are settings that are not known.
    """
    with other_forms():
        settings = json_object(files, SETTINGS)
        known: Mapping[str, Any] = dict.fromkeys(
            ("__version__", "prompts", "default_prompt_name", "similarity_fn_name")
        )
        check_settings(SETTINGS, settings, known={**known, "model_type": _KIND})
        if (kind := settings.get("model_type", _KIND)) != _KIND:
            raise OtherArchitectureError(f"model_type {kind!r} in {SETTINGS}")  # null, with which modules are left out
        if (cut := settings.get("truncate_dim")) is not None:  # false, too, is a number: no vector is left
            raise OtherArchitectureError(f"truncate_dim {cut!r:.80} in {SETTINGS}")
        own: dict[str, str | None] = settings.get("prompts") or {}
        return {name: prompt or "" for name, prompt in (_PROMPTS | own).items()}


def _max_length(files: ModelFiles, folder: str, task: Mapping[str, Any]) -> int | None:
    """Return the maximum tokens that the settings of a Transformer module name; None if they name none."""
    path = f"{folder}{TRANSFORMER}"
    if others := [name for name in files.digests if _of_transformer(name, folder) and name != path]:
        raise OtherArchitectureError(", ".join(others))
    value = json_object(files, path)
    known = {"max_seq_length": None, "unpad_inputs": None, **task}
    check_settings(path, value, known=known)
    own = value.get("max_seq_length")
    if own is not None and type(own) is not int:
        raise OtherArchitectureError(f"max_seq_length {own!r:.80} in {path}")
    return own


def _of_transformer(path: str, folder: str) -> bool:
    """Return True if a file in a folder has settings of a Transformer module, or of a processor of other than text."""
    name = path.removeprefix(folder)
    return (name.startswith("sentence_") or name.endswith("processor_config.json")) and name.endswith("_config.json")


def _prefix(files: ModelFiles, weights: tuple[str, ...], encoder: BertEncoder | ModernEncoder) -> str:
    """Return the start of the names of weights, whose shapes are checked."""
    found = {name: shape for path in weights for name, shape in stored_shapes(files, path).items()}
    for prefix in encoder.prefixes:
        expected = {prefix + name: shape for name, shape in encoder.shapes().items()}
        if all(found.get(name) == shape for name, shape in expected.items()):
            return prefix
    raise OtherArchitectureError(f"weights with other names, shapes or dtypes than those of {type(encoder).__name__}")
