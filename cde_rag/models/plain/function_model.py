"""Model of a user's own function, such as a client of an API: recognised by the vectors of fixed texts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag.context.context import Context
from cde_rag.context.file_format import canonical_json
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.errors import ContextMismatchError, ModelError, ServiceError
from cde_rag.models.model import Embedded
from cde_rag.models.plain.corpus_map import SMALLEST, unit
from cde_rag.models.plain.fixed_texts import FIXED, FIXED_DIGESTS, PROBES, of_corpus
from cde_rag.models.plain.plain_model import AGREEMENT, PlainModel
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY

FUNCTION: Final = "function"  # the semantics of such an identity
BYTES_A_TOKEN: Final = 4  # of English text, for estimates


class FunctionModel(PlainModel):
    """A user's own embedding function; see `FunctionEmbedder`, which documents arguments and errors.

    Attributes:
        probe: Vectors of the fixed texts, which every Context holds.
    """

    runtime, dtype = "function", "float32"
    in_pickles = True

    def __init__(
        self,
        function: Callable[[list[str]], Any],
        *,
        name: str,
        query_function: Callable[[list[str]], Any] | None = None,
        prefixes: Mapping[str, str] | None = None,
        mini_batch_size: int = 128,
    ) -> None:
        if not name:
            raise ValueError("Expected the name and version of the model, found none.")
        prefixes = {"query": "", "document": ""} if prefixes is None else dict(prefixes)
        if set(prefixes) != {"query", "document"}:
            raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
        self.mini_batch_size = mini_batch_size
        self._functions = {DOCUMENT: function, QUERY: query_function or function}
        self._prefixes = {DOCUMENT: prefixes["document"], QUERY: prefixes["query"]}
        self._name = name
        self._dim: int | None = None
        documents, queries = (self._called(PROBES, role, mini_batch_size, []) for role in (DOCUMENT, QUERY))
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

    def __repr__(self) -> str:
        return f"FunctionModel({self._name})"

    @property
    def fixed(self) -> tuple[Sequence[str], Float32[np.ndarray, "fixed dim"]]:
        """The fixed texts, as documents and as queries."""
        return FIXED, self.probe

    def texts_at_once(self, mini_batch_size: int) -> int:
        """Return the documents of one call of the function, whose answer is kept, so that an error costs one call."""
        return max(mini_batch_size - 1, 1)

    def reusable(self, context: Context) -> Mapping[bytes, Float32[np.ndarray, " dim"]]:
        """Return the vectors of all documents of a Context: a call of the function may cost money."""
        own = of_corpus(context)
        keys = [row.tobytes() for row in context.digests[own]]
        return dict(zip(keys, context.context_embeddings[own], strict=True))

    def known(self, context: Context) -> "FunctionModel":
        """Return the same function under the identity of an earlier run, whose vectors of the fixed texts it gives.

        Raises:
            ContextMismatchError: The Context is of another model, or the model of that name has changed.
        """
        stored, own = context.identity, self.identity
        rows = {row.tobytes(): place for place, row in enumerate(context.digests)}
        same = (stored.name, stored.prefixes, stored.dim) == (own.name, own.prefixes, own.dim)
        if not same or not rows.keys() >= set(FIXED_DIGESTS):
            raise self._mismatch(
                context,
                f"They were made with {stored.name!r}, vectors of {stored.dim} numbers and the prefixes "
                f"{dict(stored.prefixes)}; the function is {own.name!r}, {own.dim} numbers and {dict(own.prefixes)}. "
                "Open the collection with the embedder that made it.",
            )
        probe = context.context_embeddings[[rows[key] for key in FIXED_DIGESTS]]
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
        return known

    def plain(self, texts: Sequence[str], role: int, mini_batch_size: int, *, progress: bool = False) -> Embedded:
        """Embed texts; how much the function truncates is unknown, so none of them counts as truncated."""
        size = self.texts_at_once(mini_batch_size) if role == DOCUMENT else mini_batch_size
        fixed = [PROBES[0]] if size < mini_batch_size else []
        vectors = self._called(texts, role, size, fixed, progress=progress)
        return Embedded(vectors, np.zeros(len(texts), np.bool_))

    def count_tokens(self, texts: Sequence[str], *, windows: bool) -> int:  # noqa: ARG002 (of unknown length)
        """Estimate the tokens of all texts, prefixes included: one for every four bytes, as in English text."""
        prefix = len(self._prefixes[DOCUMENT].encode())
        return sum(-(-(prefix + len(text.encode())) // BYTES_A_TOKEN) for text in texts)

    def _called(
        self, texts: Sequence[str], role: int, size: int, fixed: Sequence[str], *, progress: bool = False
    ) -> Float32[np.ndarray, "texts dim"]:
        """Return vectors by calls of `size` texts, each with a fixed text in addition if there is one."""
        prefix = self._prefixes[role]
        parts = [np.empty((0, self._dim or 0), np.float32)] if not texts else []
        starts = range(0, len(texts), size)
        for start in tqdm(starts, unit="call") if progress else starts:  # a hidden bar takes 20 µs
            given = [prefix + text for text in [*texts[start : start + size], *fixed]]
            found = self._checked(self._functions[role](given), len(given))
            if fixed:
                self._check_same(found[-1])
                found = found[:-1]
            parts.append(found)
        return np.concatenate(parts)

    def _check_same(self, vector: Float32[np.ndarray, " dim"]) -> None:
        """Refuse the vectors of a call in which the fixed text has another vector than it had."""
        if (cosine := float(vector @ self.probe[0])) < AGREEMENT:
            raise ServiceError(
                f"{self._name} changed while it was in use: a fixed text has a cosine of {cosine:.3f} to its vector of "
                f"before, expected {AGREEMENT} or more. The vectors of this call were not used. Pin the model's "
                "version, or embed the texts anew in a new collection."
            )

    def _checked(self, found: Any, expected: int) -> Float32[np.ndarray, "texts dim"]:
        """Return the function's results as unit vectors."""
        try:
            vectors = np.asarray(found, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ServiceError(f"{self._name}: expected one list of numbers for each text, found: {error}.") from error
        dim = vectors.shape[1] if vectors.ndim == 2 and self._dim is None else self._dim
        if vectors.shape != (expected, dim) or not dim:
            raise ServiceError(
                f"{self._name}: expected vectors of shape ({expected}, {dim or 'dim'}), found {vectors.shape}. The "
                "function returns one vector for each text, all of one length."
            )
        if not np.isfinite(vectors).all() or (np.linalg.norm(vectors, axis=1) < SMALLEST).any():
            raise ServiceError(f"{self._name}: expected finite vectors that are not zero, found others.")
        self._dim = dim
        return unit(vectors)

    def _mismatch(self, context: Context, remedy: str) -> ContextMismatchError:
        return ContextMismatchError(expected=context.fingerprint, found=self.identity.weights_sha256, remedy=remedy)
