"""Context artifact: a sample of a corpus encoded by a model's first stage, stored alongside the vectors."""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from cde_rag._files import given_path, open_file, write_durably
from cde_rag._validation import digest
from cde_rag._version import __version__
from cde_rag.context.file_format import MAX_BYTES, canonical_json, pack, unpack, unreadable
from cde_rag.context.generic_documents import generic_documents
from cde_rag.context.identity import HasIdentity, ModelIdentity, ReadsContexts, check_types
from cde_rag.context.siblings import SIBLING_RULE, SIBLING_RULES
from cde_rag.errors import ContextError, ContextMissingError, counted

FORMAT = 2  # files of format 1 have no field `sibling_rule`; theirs is rule 1


@dataclass(frozen=True, kw_only=True)
class ContextManifest:
    """Manifest of the artifact.

    Only `identity` and the documents determine the vector space; the rest is information.

    Attributes:
        format: Version of the file's layout.
        identity: The model that made the context.
        fingerprint: Fingerprint of the vector space, 64 hex digits.
        context_size: Number of context documents, repeated ones included.
        source: Origin of the texts: `"all"`, `"first_slice"`, `"explicit"` or `"generic"`; `"null"` for none.
        sampling: Strategy of the sample.
        seed: Random seed of the sample.
        documents_seen: Texts the sample was drawn from.
        sibling_rule: Rule by which siblings of vectors in this context are chosen; see `cde_rag.context.siblings`.
        library_version: Version of cde-rag.
        created: UTC, ISO 8601.
    """

    format: int = FORMAT
    identity: ModelIdentity
    fingerprint: str
    context_size: int
    source: str
    sampling: str
    seed: int
    documents_seen: int
    sibling_rule: int = SIBLING_RULE
    library_version: str = __version__
    created: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))


@dataclass(frozen=True, eq=False)
class Context:
    """Context embeddings of a corpus under one model. Immutable; rows are sorted by their documents' digests.

    Attributes:
        manifest: Model, sample and fingerprint.
        context_embeddings: First-stage vectors of the context documents, several of one after the other where the
            model has several tokens per document; no rows for the null context.
        counts: Number of occurrences of each document in the sample.
        digests: sha256 of each document.
    """

    manifest: ContextManifest
    context_embeddings: Float32[np.ndarray, "context dim"]
    counts: Int64[np.ndarray, " context"]
    digests: UInt8[np.ndarray, "context 32"]

    def __post_init__(self) -> None:
        for array in (self.context_embeddings, self.counts, self.digests):
            array.setflags(write=False)

    @classmethod
    def create(
        cls,
        identity: ModelIdentity,
        documents: Sequence[str],
        context_embeddings: Float32[np.ndarray, "documents dim"],
        *,
        sampling: str,
        seed: int,
        documents_seen: int,
        source: str = "all",
    ) -> "Context":
        """Make a Context of a sample; a repeated document becomes one row with a count.

        Args:
            identity: Identity of the model that embedded the documents.
            documents: The context documents.
            context_embeddings: Their first-stage vectors; row i belongs to `documents[i]`.
            sampling: Strategy of the sample; like the rest, not part of the fingerprint.
            seed: Random seed of the sample.
            documents_seen: Texts the sample was drawn from.
            source: Origin of the texts, as in `ContextManifest`.

        Raises:
            ContextError: Not float32 `(documents, dim)`, no document, or values that are not finite.
            CorpusError: A document with a lone surrogate.
            TypeError: The seed is no whole number.
        """
        expected, found = (len(documents), identity.context_dim), context_embeddings
        if not documents or found.shape != expected or found.dtype != np.float32 or not np.isfinite(found).all():
            raise ContextError(
                f"A context needs finite float32 embeddings of shape {expected}, one row or more; found "
                f"{found.dtype} of shape {found.shape}. For no context at all use Context.null(model)."
            )
        rows = b"".join(digest(text, where=f"context document {row}") for row, text in enumerate(documents))
        by_row = np.frombuffer(rows, dtype=np.uint8).reshape(-1, 32)
        digests, first, counts = np.unique(by_row, axis=0, return_index=True, return_counts=True)
        manifest = ContextManifest(
            identity=identity,
            fingerprint=_fingerprint(identity, digests, counts),
            context_size=len(documents),
            source=source,
            sampling=sampling,
            seed=operator.index(seed),  # NumPy's are not in JSON
            documents_seen=documents_seen,
        )
        return cls(manifest, context_embeddings[first], counts, digests)

    @classmethod
    def null(cls, model: HasIdentity) -> "Context":
        """Return the null context, for no corpus: the model's learned null latents take its place.

        Raises:
            TypeError: `model` is no model.
        """
        _check_model(model, HasIdentity)
        identity, counts, digests = model.identity, np.empty(0, dtype=np.int64), np.empty((0, 32), dtype=np.uint8)
        manifest = ContextManifest(
            identity=identity,
            fingerprint=_fingerprint(identity, digests, counts),
            context_size=0,
            source="null",
            sampling="none",
            seed=0,
            documents_seen=0,
        )
        return cls(manifest, np.empty((0, identity.context_dim), dtype=np.float32), counts, digests)

    @classmethod
    def generic(cls, model: ReadsContexts) -> "Context":
        """Return the context of generic texts bundled with the library, for a corpus not known yet.

        Has as many texts as the model expects. A context of the corpus itself is better; this one serves as a start,
        and for models without a null context.

        Raises:
            TypeError: `model` is no model that reads contexts.

        Source: the random strings that jxm/cde-small-v1 and -v2 come with.
        """
        _check_model(model, ReadsContexts)
        documents = generic_documents(model.context_size)
        return cls.create(
            model.identity,
            documents,
            model.first_stage(documents),
            sampling="none",
            seed=0,
            documents_seen=len(set(documents)),
            source="generic",
        )

    @property
    def identity(self) -> ModelIdentity:
        """The model that made it."""
        return self.manifest.identity

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vector space, 64 hex digits: the same on all machines for one model and sample."""
        return self.manifest.fingerprint

    @property
    def size(self) -> int:
        """Rows: unique context documents."""
        return len(self.counts)

    @property
    def is_null(self) -> bool:
        """True if there is no corpus."""
        return self.size == 0

    def with_windows(self, *, windows: bool) -> "Context":
        """Return the Context of the same documents in which longer texts are read in windows, or cut.

        Its vector space is another one, with a fingerprint of its own.

        Args:
            windows: True: a text longer than the model's window is read in windows, whose vectors are averaged.
        """
        if windows == self.identity.windows:
            return self
        identity = self.identity.with_windows(windows=windows)
        fingerprint = _fingerprint(identity, self.digests, self.counts)
        return replace(self, manifest=replace(self.manifest, identity=identity, fingerprint=fingerprint))

    def __repr__(self) -> str:
        return f"Context({self.fingerprint[:16]}, {self.identity.name}, {counted(self.size, 'document')})"

    def to_bytes(self) -> bytes:
        """Serialise to the file's content; equal contexts give equal bytes."""
        tensors = {"context_embeddings": self.context_embeddings, "counts": self.counts, "digests": self.digests}
        manifest = {**asdict(self.manifest), "identity": self.identity.to_json()}
        if self.manifest.format == 1:
            del manifest["sibling_rule"]  # as it was read
        return pack(tensors, manifest)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> "Context":
        """Parse the output of `to_bytes`, and verify all of it.

        Args:
            data: The file's content.
            where: Name of the file in error messages.

        Raises:
            ContextFormatError: Too large, truncated, changed, or of a newer format.
        """
        tensors, raw = unpack(data, newest=FORMAT, where=where)
        try:
            identity = ModelIdentity.from_json(raw.pop("identity"))
            # Older files lack these two.
            raw.setdefault("context_size", int(tensors["counts"].sum()) if "counts" in tensors else 0)
            raw.setdefault("sibling_rule", 1)
            raw["identity"] = identity
            check_types(ContextManifest, raw)
            manifest = ContextManifest(**raw)
        except (TypeError, KeyError, ValueError) as error:
            raise unreadable(where, f"other fields than those of format {FORMAT} ({error})") from error
        problem = _problem(manifest, tensors)
        if problem:
            raise unreadable(where, problem)
        return cls(manifest, **tensors)

    def save(self, path: str | Path) -> None:
        """Write one `*.context.safetensors` atomically: after a crash the old file or the new one is there, complete.

        Raises:
            ContextError: The disk is not writable, or full.
        """
        try:
            write_durably(given_path(path, "The file of the context", ContextError), self.to_bytes())
        except (OSError, ValueError) as error:
            raise ContextError(
                f"{path}: not written ({_reason(error)}). Choose a writable folder with space."
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> "Context":
        """Read one `*.context.safetensors` and check all of it.

        Raises:
            ContextMissingError: There is no such file.
            ContextFormatError: Too large, truncated, changed, or of a newer format.
        """
        try:
            with open_file(given_path(path, "The file of the context", ContextError)) as file:
                data = file.read(MAX_BYTES + 1)  # one byte too many is enough to refuse
        except FileNotFoundError as error:
            raise ContextMissingError(
                f"{path}: there is no such file. Make one with embedder.context.save(path)."
            ) from error
        except (OSError, ValueError) as error:
            raise ContextError(f"{path}: not readable ({_reason(error)}).") from error
        return cls.from_bytes(data, where=str(path))


def _reason(error: OSError | ValueError) -> str:
    """Return the reason why a path cannot be opened; a ValueError is that of a NUL character in it."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _fingerprint(
    identity: ModelIdentity, digests: UInt8[np.ndarray, "context 32"], counts: Int64[np.ndarray, " context"]
) -> str:
    """Compute the sha256 over all that determines the vector space, and nothing else."""
    space = identity.to_json()
    del space["name"]
    documents = [[row.tobytes().hex(), int(count)] for row, count in zip(digests, counts, strict=True)]
    return hashlib.sha256(canonical_json({**space, "documents": documents or "null"}).encode()).hexdigest()


def _check_model(model: object, kind: type[object]) -> None:
    if not isinstance(model, kind):
        raise TypeError(f'Expected a model, such as CDEModel.from_pretrained("cde-mini"), found {model!r:.80}.')


def _problem(manifest: ContextManifest, tensors: Mapping[str, np.ndarray]) -> str | None:
    """Return a description of the first problem in a context's content, or None."""
    size = len(tensors.get("counts", ()))
    expected = {
        "context_embeddings": ("float32", (size, manifest.identity.context_dim)),
        "counts": ("int64", (size,)),
        "digests": ("uint8", (size, 32)),
    }
    found = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        return f"tensors {found} and not {expected}"
    if not np.isfinite(tensors["context_embeddings"]).all() or (tensors["counts"] < 1).any():
        return "embeddings that are not finite, or counts below 1"
    if manifest.fingerprint != _fingerprint(manifest.identity, tensors["digests"], tensors["counts"]):
        return "a fingerprint that is not that of its model and documents"
    if manifest.sibling_rule not in SIBLING_RULES:
        return f"the sibling rule {manifest.sibling_rule}, where {SIBLING_RULES} are known"
    if manifest.context_size != tensors["counts"].sum():
        return f"{tensors['counts'].sum()} context documents and not {manifest.context_size}"
    return None
