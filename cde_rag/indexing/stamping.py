"""Writing of embedding stamps by our embedders, and comparison of stamps with them; `stamp_reader` has the format."""

import base64
import struct
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.context.identity import PLAIN
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.stamp_reader import (
    FORMAT,
    KEY,
    MOST_BYTES,
    ROLES,
    SAME,
    Stamp,
    StampError,
    canonical,
    digest_of,
    kept,
    likeness,
    parse,
)

CANARIES: Final = (  # role and text: no text of anybody's corpus, so that nothing has to be erased from a stamp
    ("document", "The river rose by 2.4 m in March 1987, and the bank lent the farmers 300,000 francs."),
    ("document", "Übersicht: def parse(date): return datetime.strptime(date, '%Y-%m-%d')  # 日付"),
    ("query", "who paid for the flood?"),
)


@runtime_checkable
class Stampable(Protocol):
    """A store whose metadata has a place for a stamp."""

    def stamp_text(self) -> str | None:
        """Return the stamp as it is stored, unchecked; None if there is none."""
        ...

    def put_stamp(self, text: str) -> None:
        """Store a stamp, in place of another one.

        Raises:
            StoreError: It cannot be stored, or the store's application would notice.
        """
        ...


@dataclass(frozen=True, slots=True)
class StampCheck:
    """Comparison of a stamp with an embedder.

    Attributes:
        line: Model, prefixes and context that the stamp names; None if it cannot be read.
        fingerprint: Fingerprint of the vector space that it names; None if it cannot be read.
        cosine: Least cosine of its canaries and the embedder's vectors of them; None if they cannot be compared.
        problem: Reason why it cannot be read, or compared; None if it can.
    """

    line: str | None
    fingerprint: str | None
    cosine: float | None
    problem: str | None

    @property
    def agrees(self) -> bool:
        """True if the embedder makes the vectors of the canaries."""
        return self.cosine is not None and self.cosine >= SAME

    @property
    def finding(self) -> str:
        """Finding, in sentences."""
        if self.line is None:
            return f"The stamp cannot be read: {self.problem}"
        found = f"The stamp names {self.line}."
        if self.cosine is None:
            return f"{found} This embedder is another one: {self.problem}"
        same = "makes" if self.agrees else "does not make"
        return f"{found} This embedder {same} the vectors of its canaries (least cosine {self.cosine:.4f})."


def stamp_of(embedder: Embedder) -> str:
    """Return the stamp of an embedder's vectors: JSON of some 3 kB, and at most 16.

    Raises:
        StoreError: Its name and prefixes make it longer.
    """
    identity = embedder.context.identity
    content: dict[str, Any] = {
        KEY: FORMAT,
        "model": {
            "name": identity.name,
            "revision": identity.name.partition("?")[0].partition("@")[2],
            "weights_sha256": identity.weights_sha256,
            "tokenizer_sha256": identity.tokenizer_sha256,
            "dim": identity.dim,
            "max_length": identity.max_length,
            "pooling": identity.pooling,
            "normalisation": identity.normalisation,
        },
        "prefixes": {role: identity.prefixes.get(role, "") for role in ROLES},
        "context": _context(embedder),
        "canaries": [
            {"role": role, "text": text, "vector": _packed(vector)}
            for (role, text), vector in zip(CANARIES, _canary_vectors(embedder, CANARIES), strict=True)
        ],
    }
    text = canonical({**content, "digest": digest_of(content)}).decode()
    if len(text) > MOST_BYTES:
        raise StoreError(
            f"Expected a stamp of at most {MOST_BYTES} characters, found {len(text)}: shorten the prefixes."
        )
    return text


def fingerprint_in(text: str | None) -> str | None:
    """Return the fingerprint of the space that a stamp names; None without a stamp that can be read."""
    try:
        return None if text is None else str(parse(text).context["fingerprint"]) or None
    except StampError:
        return None


def compared(text: str, embedder: Embedder) -> StampCheck:
    """Compare a stored stamp with an embedder, which embeds its canaries."""
    try:
        stamp = parse(text)
    except StampError as error:
        return StampCheck(None, None, None, str(error))
    cosine, problem = None, None
    try:
        if stamp.model["dim"] != embedder.dim:
            raise StampError(f"its vectors have {embedder.dim} numbers.")
        cosine = likeness(stamp, _of_stamp(embedder, stamp).tolist())
    except StampError as error:
        problem = str(error)
    return StampCheck(stamp.line, stamp.context["fingerprint"], cosine, problem)


def _of_stamp(embedder: Embedder, stamp: Stamp) -> Float32[np.ndarray, "canaries dim"]:
    return _canary_vectors(embedder, tuple((each.role, each.text) for each in stamp.canaries))


def _canary_vectors(embedder: Embedder, canaries: tuple[tuple[str, str], ...]) -> Float32[np.ndarray, "canaries dim"]:
    """Embed each canary in its role, with the embedder's own prefixes."""
    vectors = np.empty((len(canaries), embedder.dim), np.float32)
    for role in ROLES:
        places = [place for place, (each, _) in enumerate(canaries) if each == role]
        texts = [canaries[place][1] for place in places]
        if texts:
            passages = role == "document"
            vectors[places] = (
                embedder.embed_passages(texts, None).vectors if passages else embedder.embed_queries(texts)
            )
    return vectors


def _packed(vector: Float32[np.ndarray, " dim"]) -> str:
    """Return the numbers of a vector that a stamp keeps, as little-endian float16 in base64."""
    numbers = kept(vector.tolist())
    return base64.b64encode(struct.pack(f"<{len(numbers)}e", *numbers)).decode()


def _context(embedder: Embedder) -> dict[str, Any]:
    """Return fingerprint, kind (none, null, generic or corpus) and number of documents of the context."""
    manifest = embedder.context.manifest
    kind = manifest.source if manifest.source in ("null", "generic") else "corpus"
    if manifest.identity.attention == PLAIN:  # whose Context, if any, has texts by which a function is known
        return {"fingerprint": embedder.fingerprint, "kind": "none", "documents": 0}
    return {"fingerprint": embedder.fingerprint, "kind": kind, "documents": manifest.context_size}
