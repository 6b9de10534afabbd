"""Embedder of a user's own function, such as a client of an API: recognised by the vectors of fixed texts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag._validation import check_positive, digest
from cde_rag.context.context import Context
from cde_rag.context.file_format import canonical_json
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.embedders.context_free import ContextFreeEmbedder
from cde_rag.embedders.mixing import SMALLEST, unit
from cde_rag.embedders.protocol import Embedded, EmbedderOptions
from cde_rag.errors import ContextMismatchError, ModelError

FUNCTION: Final = "function"  # the semantics of such an identity
AGREEMENT: Final = 0.999  # least cosine of a probe's vectors in one space; APIs round differently from call to call
BYTES_A_TOKEN: Final = 4  # of English text, for estimates
PROBES: Final = (  # fixed for ever: contexts hold their vectors
    "The capital of France is Paris.",
    "def add(a, b): return a + b",
    "Revenue rose by 12 % in the third quarter of 2019.",
    "El perro duerme debajo de la mesa.",
    "Take two tablets a day, with water, after a meal.",
    "How do I restart a failed job?",
    "量子力学",
    "x",
)
FIXED: Final = (*PROBES, *(f"cde-rag probe query: {text}" for text in PROBES))  # as documents, then as queries
PROBE_DIGESTS: Final = tuple(digest(text) for text in FIXED)


class FunctionEmbedder(ContextFreeEmbedder):
    """A user's own embedding function as a collection's embedder. Thread-safe if the function is.

    Which model answers is known by its vectors of eight fixed texts, as documents and as queries: they are embedded
    once in the constructor, and stored in the Context. When a collection is opened again they are compared, and each
    call for documents embeds the first of them once more: an API whose model changed under its name is an error and
    not a mixture. No code or address is stored: a collection is opened with `Collection.open(store, model=embedder)`.

    Args:
        function: Takes a list of strings, and returns one vector for each: a list of lists, or an array `(texts, dim)`.
            Norms do not matter. It retries by itself; what it raises goes to the caller, and nothing that was stored
            before is lost.
        name: Name and version of the model, such as "voyage-3"; part of the fingerprint.
        query_function: Function for queries where the API has another one; by default `function`.
        prefixes: Prefixes of a "query" and a "document"; none by default.
        mini_batch_size: Texts per call of the function, at most; one of them is the fixed text, unless it is 1.

    Raises:
        ModelError: The function returns other than one finite vector for each text; or prefixes of other roles.
        ValueError: `name` is empty, or `mini_batch_size` below 1.
    """

    def __init__(
        self,
        function: Callable[[list[str]], Any],
        *,
        name: str,
        query_function: Callable[[list[str]], Any] | None = None,
        prefixes: Mapping[str, str] | None = None,
        mini_batch_size: int = 128,
    ) -> None:
        check_positive(mini_batch_size, "mini_batch_size")
        if not name:
            raise ValueError("Expected the name and version of the model, found none.")
        prefixes = {"query": "", "document": ""} if prefixes is None else dict(prefixes)
        if set(prefixes) != {"query", "document"}:
            raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
        self.mini_batch_size = mini_batch_size
        self._functions = {"document": function, "query": query_function or function}
        self._prefixes = prefixes
        self._name = name
        self._dim: int | None = None
        documents, queries = (self._called(PROBES, role, mini_batch_size) for role in ("document", "query"))
        self.probe: Float32[np.ndarray, "probes dim"] = np.concatenate([documents, queries])
        told = canonical_json({"name": name, "probe": hashlib.sha256(self.probe.tobytes()).hexdigest()})
        self.identity = ModelIdentity(
            name=name,
            weights_sha256=hashlib.sha256(told.encode()).hexdigest(),
            tokenizer_sha256=hashlib.sha256(name.encode()).hexdigest(),
            attention=PLAIN,
            semantics=FUNCTION,
            roles="prefix",
            prefixes=prefixes,
            max_length=0,
            pooling=FUNCTION,
            normalisation="unit",
            dim=documents.shape[1],
        )
        self.context = probe_context(self.identity, self.probe)

    def __repr__(self) -> str:
        return f"FunctionEmbedder({self._name})"

    @property
    def texts_per_call(self) -> int:
        """Documents per call of the function, at most."""
        return max(self.mini_batch_size - 1, 1)

    @property
    def options(self) -> EmbedderOptions:
        """Batch size, for the embedder that follows this one."""
        return EmbedderOptions(mini_batch_size=self.mini_batch_size)

    def rebound(self, context: Context) -> "FunctionEmbedder":
        """Bind the function to the Context of an earlier run, whose vectors of the fixed texts it still gives.

        Raises:
            ContextMismatchError: The Context is of another model, or the model of that name has changed.
        """
        if context.identity.attention != PLAIN:
            raise self._mismatch(context, "Those vectors have context in them: ArithmeticEmbedder(embedder, context).")
        known = self.adopting(context)
        known.context = context
        return known

    def adopting(self, context: Context) -> "FunctionEmbedder":
        """Return the same function under the identity that it had in an earlier run.

        Args:
            context: That run's, with siblings or without.

        Raises:
            ContextMismatchError: As `rebound`.
        """
        stored, own = context.identity, self.identity
        rows = {row.tobytes(): place for place, row in enumerate(context.digests)}
        same = (stored.name, stored.prefixes, stored.dim) == (own.name, own.prefixes, own.dim)
        if not same or not rows.keys() >= set(PROBE_DIGESTS):
            raise self._mismatch(
                context,
                f"They were made with {stored.name!r}, vectors of {stored.dim} numbers and the prefixes "
                f"{dict(stored.prefixes)}; the function is {own.name!r}, {own.dim} numbers and {dict(own.prefixes)}. "
                "Open the collection with the embedder that made it.",
            )
        probe = context.context_embeddings[[rows[key] for key in PROBE_DIGESTS]]
        cosine = float((probe * self.probe).sum(axis=1).min())
        if cosine < AGREEMENT:
            raise self._mismatch(
                context,
                f"{stored.name!r} gives other vectors than when the collection was made: a fixed text has a cosine of "
                f"{cosine:.3f} to its vector of then, expected {AGREEMENT} or more. The model of that name has "
                "changed: pin its version, or embed the texts anew in a new collection.",
            )
        known = copy(self)
        known.identity, known.probe = replace(own, weights_sha256=stored.weights_sha256), probe
        known.context = probe_context(known.identity, probe)
        return known

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Estimate the tokens of all texts, prefixes included: one for every four bytes, as in English text."""
        prefix = len(self._prefixes["document"].encode())
        return sum(-(-(prefix + len(text.encode())) // BYTES_A_TOKEN) for text in texts)

    def _embed(self, texts: Sequence[str], role: str, *, progress: bool = False) -> Embedded:
        size = self.texts_per_call if role == "document" else self.mini_batch_size
        vectors = self._called(texts, role, size, progress=progress)
        return Embedded(vectors, np.zeros(len(texts), np.bool_))

    def _called(
        self, texts: Sequence[str], role: str, size: int, *, progress: bool = False
    ) -> Float32[np.ndarray, "texts dim"]:
        """Return vectors by calls of `size` texts, each with the fixed text in addition where there is room for it."""
        prefix = self._prefixes[role]
        fixed = [prefix + PROBES[0]] if size < self.mini_batch_size else []
        parts = [np.empty((0, self._dim or 0), np.float32)] if not texts else []
        for start in tqdm(range(0, len(texts), size), unit="call", disable=not progress):
            given = [prefix + text for text in texts[start : start + size]] + fixed
            found = self._checked(self._functions[role](given), len(given))
            if fixed:
                self._check_same(found[-1])
                found = found[:-1]
            parts.append(found)
        return np.concatenate(parts)

    def _check_same(self, vector: Float32[np.ndarray, " dim"]) -> None:
        """Refuse the vectors of a call in which the fixed text has another vector than it had."""
        if (cosine := float(vector @ self.probe[0])) < AGREEMENT:
            raise ModelError(
                f"{self._name} changed while it was in use: a fixed text has a cosine of {cosine:.3f} to its vector of "
                f"before, expected {AGREEMENT} or more. The vectors of this call were not used. Pin the model's "
                "version, or embed the texts anew in a new collection."
            )

    def _checked(self, found: Any, expected: int) -> Float32[np.ndarray, "texts dim"]:
        """Return the function's results as unit vectors."""
        try:
            vectors = np.asarray(found, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self._name}: expected one list of numbers for each text, found: {error}.") from error
        dim = vectors.shape[1] if vectors.ndim == 2 and self._dim is None else self._dim
        if vectors.shape != (expected, dim) or not dim:
            raise ModelError(
                f"{self._name}: expected vectors of shape ({expected}, {dim or 'dim'}), found {vectors.shape}. The "
                "function returns one vector for each text, all of one length."
            )
        if not np.isfinite(vectors).all() or (np.linalg.norm(vectors, axis=1) < SMALLEST).any():
            raise ModelError(f"{self._name}: expected finite vectors that are not zero, found others.")
        self._dim = dim
        return unit(vectors)

    def _mismatch(self, context: Context, remedy: str) -> ContextMismatchError:
        return ContextMismatchError(expected=context.fingerprint, found=self.context.fingerprint, remedy=remedy)

    def _no_siblings(self) -> ModelError:
        return ModelError(
            f"{self._name} reads no siblings: it is a plain model. Leave parents out, or use "
            "ContextualEmbedder.from_corpus(texts, model=embedder)."
        )


def probe_context(identity: ModelIdentity, probe: Float32[np.ndarray, "probes dim"]) -> Context:
    """Return the Context without a corpus: it holds the vectors of the fixed texts."""
    return Context.create(identity, FIXED, probe, sampling="none", seed=0, documents_seen=0, source="probe")
