"""Manifest of a store of points: one JSON object, replaced in one write."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.manifests import PENDING, StoredGeneration, StoredManifest
from cde_rag.stores.quantization import prefixes
from cde_rag.stores.text_analysis import ANALYZER, TextAnalyzer, analyzer_of, with_newest

FORMAT: Final = 1
PREFIXED: Final = 2  # format of a store with prefixes, which older versions would not write
WORDED: Final = 3  # likewise of one with words, be there prefixes or not
FENCED: Final = 4  # likewise of one with versions, which is compared and swapped
NATIVE: Final = 5  # likewise of one whose filters are Qdrant's own
ANALYZED: Final = 6  # likewise of one whose settings name an analyzer
_NAME: Final = re.compile(r"(cde_[0-9a-f]{64}(?:_[0-9a-f]{8})?)(?:_\d+)?")


def vector_name(fingerprint: str) -> str:
    """Name of the vector that holds the embeddings of one space.

    Args:
        fingerprint: Fingerprint of the Context, 64 hex digits.

    Returns:
        `"cde_"` and the fingerprint.
    """
    return f"cde_{fingerprint}"


def prefix_name(vector: str, dims: int) -> str:
    """Name of the vector that holds the first dimensions of that of another name."""
    return f"{vector}_{dims}"


def full_name(name: str) -> str | None:
    """Return the name of a generation's full vectors, given their name or that of their prefixes; None of others."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class PointsGeneration(StoredGeneration):
    """One generation.

    Attributes:
        run: Token of the run that made it, to distinguish generations of one space, in this and in other
            collections. "" in a folder, and of the first generation of a collection that an older version made.
    """

    run: str = ""

    @property
    def key(self) -> str:
        """Key of the generation's data, never shared with another generation, past or present."""
        return f"{self.fingerprint}_{self.run}" if self.run else self.fingerprint

    @property
    def vector(self) -> str:
        """Name of its vectors, and key of their digests and checksums in a point's payload."""
        return vector_name(self.key)


@dataclass(frozen=True, slots=True)
class PointsManifest(StoredManifest[PointsGeneration]):
    """Manifest of a store.

    Attributes:
        settings: Settings of the collection, written at creation, as JSON.
        leftover: Keys of generations that are being created or dropped; their data is ignored.
        adopted: True if it is made of another application's points, which keep their ids, payload and vectors.
        words: True if points have a sparse vector of their terms; see qdrant_base/words.py.
        prefix: Number of dimensions of prefixes for the first search, in named vectors of their own; None for none.
        version: Version for compare-and-swap of the manifest; 0 if a single process replaces it.
        run: Token of the run that took the lease last; any other run has lost it.
        activating: The generation about to be activated; reset by a writer that writes a record meanwhile.
        native: True if filters are Qdrant's own, on the metadata of points; False in stores of older versions.
        token: Random token of the write that made it, for compare-and-swap: versions are repeated where a snapshot is
            restored. It is stored with the manifest, not in it; "" where there is none.
    """

    settings: str
    leftover: tuple[str, ...] = ()
    adopted: bool = False
    words: bool = False
    prefix: int | None = None
    version: int = 0
    run: str = ""
    activating: int | None = None
    native: bool = False
    token: str = ""

    def check_native(self, where: str) -> None:
        """Refuse to write records to a store of an older version, whose filters would not find them.

        Raises:
            StoreError: It is one; `where` is for the message.
        """
        if not self.native:
            found = "one of an older version, which can be searched and read"
            hint = (
                "cde-rag reindex (store.index_texts()) moves it, without embedding; older versions cannot open it then."
            )
            raise StoreError(f"{where}: expected a store with filters of Qdrant, found {found}. {hint}")

    def sizes(self, key: str) -> dict[str, int]:
        """Return the lengths of a generation's named vectors, by name: full vectors, then prefixes."""
        prefixed = {} if self.prefix is None else {prefix_name(vector_name(key), self.prefix): self.prefix}
        return {vector_name(key): self.dim, **prefixed}

    def named(self, state: PointsGeneration, vector: Float32[np.ndarray, "dim"]) -> dict[str, list[float]]:
        """Return a vector of a generation, and its prefix, by name."""
        whole = {state.vector: vector.tolist()}
        if self.prefix is None:
            return whole
        (short,) = prefixes(vector[None], self.prefix)
        return {**whole, prefix_name(state.vector, self.prefix): short.tolist()}

    @property
    def analyzer(self) -> TextAnalyzer:
        """Analyzer of the words."""
        return analyzer_of(json.loads(self.settings))

    def renewed_settings(self) -> str:
        """Return the settings with the newest analyzer, as JSON."""
        return json.dumps(with_newest(json.loads(self.settings)), ensure_ascii=False)

    @property
    def may_wait(self) -> bool:
        """True if records may wait for their vectors in the active generation."""
        return PENDING in json.loads(self.settings)

    def to_metadata(self) -> dict[str, Any]:
        """Serialise the manifest for storage."""
        content = json.loads(json.dumps(dataclasses.asdict(self)))
        del content["token"]
        content |= {"format": self._format, "fingerprint": self.serving.fingerprint}
        for name in [name for name, plain in _PLAIN.items() if content[name] == plain]:
            del content[name]  # as all versions read it
        for state in content["generations"]:
            if not state["run"]:
                del state["run"]
        return content | {"checksum": _checksum(content)}

    @property
    def _format(self) -> int:
        if ANALYZER in json.loads(self.settings):
            return ANALYZED
        if self.native:
            return NATIVE
        if self.version:
            return FENCED
        if self.words:
            return WORDED
        return FORMAT if self.prefix is None else PREFIXED

    @classmethod
    def from_metadata(cls, stored: Mapping[str, Any], where: str) -> "PointsManifest":
        """Parse the output of `to_metadata`.

        Raises:
            StoreFormatError: Damaged, or of a newer format.
        """
        if (found := stored.get("format")) not in (FORMAT, PREFIXED, WORDED, FENCED, NATIVE, ANALYZED):
            raise StoreFormatError(f"{where}: expected format {ANALYZED} or older, found {found}. Update cde-rag.")
        content = {name: value for name, value in stored.items() if name != "checksum"}
        if _checksum(content) != stored.get("checksum"):
            raise StoreFormatError(f"{where}: expected a manifest with its checksum, found another. Restore a copy.")
        if not all(type(state["number"]) is int for state in content["generations"]):  # it becomes a file's name
            raise StoreFormatError(f"{where}: expected numbers of generations, found others. Restore a copy.")
        generations = tuple(PointsGeneration(**state) for state in content["generations"])
        found = {name: content[name] for name in ("dim", "settings", "active", "last", *_PLAIN) if name in content}
        return cls(**found, generations=generations, leftover=tuple(content["leftover"]))


_PLAIN: Final[Mapping[str, Any]] = {  # what is left out where it says nothing
    "adopted": False,
    "words": False,
    "prefix": None,
    "version": 0,
    "run": "",
    "activating": None,
    "native": False,
}


def _checksum(content: Mapping[str, Any]) -> str:
    return checksum_of(json.dumps(content, sort_keys=True)).hex()
