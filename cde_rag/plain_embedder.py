"""A sentence-transformers model without any context as an embedder, so that a collection can start with one, or return.

The model stays what it is: each text is read by itself, as `encode_query` or `encode_document` read it.
"""

import hashlib
import json
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from tokenizers import Tokenizer

from cde_rag.artifact import canonical_json
from cde_rag.context import Context
from cde_rag.embedding import Embedded
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, TruncationWarning, require
from cde_rag.identity import ModelIdentity
from cde_rag.model.cde_model import DTYPES
from cde_rag.model.names import ModelName
from cde_rag.model.weights import sha256
from cde_rag.texts import check_texts, reject_str

PLAIN = "none"  # the context attention of a plain embedder's identity
UNLIMITED = 0  # its max_length where texts are never cut
EXTRA = "interop"
MODULES = "modules.json"
READ = (".json", ".model", ".safetensors", ".txt")  # endings of the files that a model is made of
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # what models call the prompt of a document


class PlainEmbedder:
    """A sentence-transformers model that gives a collection vectors without context. Thread-safe.

    Its Context is the null context, its fingerprint that of its files. `embed_documents`, as a function of texts, is
    also a surrogate for training.

    Args:
        model: A folder of a SentenceTransformer, or a hub id such as "sentence-transformers/all-MiniLM-L6-v2", with
            `@revision` if need be; the name in its identity finds the very same model again.
        max_length: Tokens of a text that are read; the model's own by default.
        prefixes: What stands before a "query" and a "document"; the model's own prompts by default.
        device: Such as "cpu" or "cuda"; CUDA where there is one by default.
        dtype: "float32", "bfloat16" or "float16"; as sentence-transformers loads it by default.
        mini_batch_size: Texts per forward pass; lower it when memory runs out.

    Raises:
        MissingExtraError: The extra `interop` is not installed.
        ModelError: There is no such model; it is no SentenceTransformer, has no safetensors, or brings its own code.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_length: int | None = None,
        prefixes: Mapping[str, str] | None = None,
        device: str | None = None,
        dtype: str | None = None,
        mini_batch_size: int = 32,
    ) -> None:
        folder, name = _resolve(str(model))
        digests = {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder)}
        self._model = _load(folder, device, dtype)
        if max_length:
            self._model.max_seq_length = max_length
        self.mini_batch_size = mini_batch_size
        self._encoding = threading.Lock()  # tokenizers of transformers are changed by every call
        self.identity = _identity(name, digests, self._model, prefixes)
        self.context = Context.null(self)

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.context.fingerprint

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.identity.dim

    @property
    def device(self) -> str:
        """Where it computes, such as "cpu"."""
        return str(self._model.device)

    @property
    def max_siblings(self) -> int:
        """None: every text is read by itself."""
        return 0

    def rebound(self, context: Context) -> "PlainEmbedder":
        """This embedder, if the context is its own.

        Raises:
            ContextMismatchError: It is another model's.
        """
        if replace(context.identity, name="") != replace(self.identity, name=""):
            raise ContextMismatchError(
                expected=context.identity.weights_sha256,
                found=self.identity.weights_sha256,
                remedy=f"They were made with {context.identity.name!r}; this is {self.identity.name!r}.",
            )
        return self

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found.

        Args:
            texts: Documents.
            parents: None; there for embedders that read siblings.
            progress: Show a bar on stderr.

        Returns:
            Unit norm; row i belongs to `texts[i]`.

        Raises:
            CorpusError: A text is blank, holds a lone surrogate, or has no word that the model knows.
            ModelError: There are parents.
            TypeError: `texts` is a single str.

        Warns:
            TruncationWarning: Texts are longer than the model reads, with their number.
        """
        reject_str(texts, call="embed_documents")
        if parents is not None:
            raise self._no_siblings()
        return self._warned(self._embed(texts, "document", progress=progress))

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search. Returns, raises and warns like `embed_documents`."""
        reject_str(texts, call="embed_queries")
        return self._warned(self._embed(texts, "query", progress=False))

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents.

        Args:
            texts: Documents.
            siblings: None, or none for each text; there for embedders that read siblings.
            progress: Show a bar on stderr.

        Raises:
            CorpusError: As `embed_documents`.
            ModelError: A text has siblings.
        """
        if siblings is not None and any(siblings):
            raise self._no_siblings()
        return self._embed(texts, "document", progress=progress)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Tokens of all texts together, as far as they are read, prefixes and special tokens included."""
        limit = self.identity.max_length
        return sum(min(length, limit) if limit else length for length in self._lengths(texts, "document"))

    def _embed(self, texts: Sequence[str], role: str, *, progress: bool) -> Embedded:
        check_texts(texts)
        if not texts:
            return Embedded(np.empty((0, self.dim), dtype=np.float32), np.empty(0, dtype=np.bool_))
        encode = self._model.encode_query if role == "query" else self._model.encode_document
        with self._encoding:
            found = encode(
                list(texts),
                prompt=self.identity.prefixes[role],
                batch_size=self.mini_batch_size,
                show_progress_bar=progress,
            )
        vectors = np.asarray(found, dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if len(blank := np.flatnonzero(norms < 1e-9)):
            raise CorpusError(
                f"Text {blank[0]} has no word that {self.identity.name} knows; leave it out or give it content."
            )
        limit = self.identity.max_length
        cut = [length > limit for length in self._lengths(texts, role)] if limit else [False] * len(texts)
        return Embedded(vectors / norms, np.array(cut, dtype=np.bool_))

    def _lengths(self, texts: Sequence[str], role: str) -> list[int]:
        """Tokens of each text, uncut."""
        prefix, tokenizer = self.identity.prefixes[role], self._model.tokenizer
        given = [prefix + text for text in texts]
        if isinstance(tokenizer, Tokenizer):  # of static vectors
            return [len(encoding.ids) for encoding in tokenizer.encode_batch(given)]
        with self._encoding:
            return [len(ids) for ids in tokenizer(given, truncation=False, padding=False, verbose=False)["input_ids"]]

    def _warned(self, embedded: Embedded) -> Float32[np.ndarray, "texts dim"]:
        if count := int(embedded.truncated.sum()):
            identity = self.identity
            warnings.warn(
                f"{count} of {len(embedded.truncated)} texts are longer than the {identity.max_length} tokens that "
                f"{identity.name} reads; what comes after was not embedded. Split long documents.",
                TruncationWarning,
                stacklevel=3,
            )
        return embedded.vectors

    def _no_siblings(self) -> ModelError:
        return ModelError(f"{self.identity.name} reads no siblings: it is a plain model. Leave parents out.")


def _resolve(name: str) -> tuple[Path, str]:
    """The folder of a model, downloaded if need be, and the name under which it is found again."""
    folder = Path(name)
    if folder.is_dir():
        return folder, str(folder.resolve())
    parsed = ModelName.parse(name)
    if not parsed.is_hub_id or parsed.has_options:
        raise ModelError(f"Expected a folder of a SentenceTransformer or a hub id of one, found {name!r}.")
    download: Any = require("huggingface_hub", EXTRA).snapshot_download
    errors: Any = require("huggingface_hub.errors", EXTRA)
    try:
        patterns = [f"*{ending}" for ending in READ]
        cached = Path(
            download(parsed.base, revision=parsed.revision, allow_patterns=patterns, ignore_patterns=["onnx/*"])
        )
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        raise ModelError(
            f"{name} is neither a folder, nor in the cache, nor on the hub as far as it can be reached: {error}"
        ) from error
    return cached, str(replace(parsed, revision=cached.name))


def _load(folder: Path, device: str | None, dtype: str | None) -> Any:
    """The SentenceTransformer; code that a folder brings is not run, nor is anything unpickled."""
    sentence_transformers: Any = require("sentence_transformers", EXTRA)
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"Expected dtype {', '.join(DTYPES)}, found {dtype!r}.")
    try:
        model = sentence_transformers.SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"{folder}: sentence-transformers cannot load it: {error}") from error
    return model if dtype is None else model.to(DTYPES[dtype])


def _identity(name: str, digests: Mapping[str, str], model: Any, prefixes: Mapping[str, str] | None) -> ModelIdentity:
    """What determines the vectors: all files that the model is read from, its prefixes and its length."""
    tokenizer = {path: digest for path, digest in digests.items() if _of_tokenizer(path)}
    weights = {path: digest for path, digest in digests.items() if path not in tokenizer}
    if prefixes is None:
        prompts: Mapping[str, str] = model.prompts
        document = next((prompts[each] for each in DOCUMENT_PROMPTS if prompts.get(each)), "")
        prefixes = {"query": prompts.get("query", ""), "document": document}
    length = model.max_seq_length
    return ModelIdentity(
        name=name,
        weights_sha256=hashlib.sha256(canonical_json(weights).encode()).hexdigest(),
        tokenizer_sha256=hashlib.sha256(canonical_json(tokenizer).encode()).hexdigest(),
        attention=PLAIN,
        semantics="sentence-transformers",
        roles="prefix",
        prefixes=dict(prefixes),
        max_length=int(length) if length and np.isfinite(length) else UNLIMITED,
        pooling=MODULES,
        normalisation="unit",
        dim=model.get_embedding_dimension(),
    )


def _of_tokenizer(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith((".model", ".txt")) or "token" in name or name in ("vocab.json", "merges.json")


def _files(folder: Path) -> list[Path]:
    """The files that a model is read from: its own and those of its modules."""
    place = folder / MODULES
    try:
        parts = [Path(str(module["path"])) for module in json.loads(place.read_text(encoding="utf-8"))]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"Expected the modules of a SentenceTransformer at {place}, found: {error!r}.") from error
    inner = [path for part in parts if part != Path() and ".." not in part.parts for path in (folder / part).rglob("*")]
    found = (path for path in (*folder.iterdir(), *inner) if path.suffix in READ and path.is_file())
    files = sorted(set(found))
    if not any(path.suffix == ".safetensors" for path in files):
        raise ModelError(f"{folder}: expected safetensors, found {', '.join(path.name for path in files)}.")
    return files
